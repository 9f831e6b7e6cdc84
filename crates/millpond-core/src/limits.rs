//! The bounds of the engine and their reasons, in one place (invariant 12).

/// Rows of a batch, at most. Large enough that per-batch costs vanish (20 ns a hop), small enough
/// that a batch of wide rows stays in the cache and alignment waits little.
pub const BATCH_ROWS_MAX: usize = 8192;

/// Frozen rows that a task copies between two batches: about half of what a batch costs, so that a
/// checkpoint of any size holds up no row for longer than a batch does.
pub const DRAIN_ROWS: usize = 4096;

/// Elements waiting in a channel between two tasks. Alignment costs at most the rows in flight,
/// so channels are short; two would already keep both ends busy.
pub const CHANNEL_ELEMENTS_MAX: usize = 4;

/// Bytes of one record of a text format. A quote that is never closed must not swallow a file.
pub const RECORD_BYTES_MAX: usize = 16 << 20;

/// Nesting of one JSON value; deeper ones are bad rows rather than a stack overflow.
pub const JSON_DEPTH_MAX: usize = 128;

/// Bytes that a text reader takes from a file at once.
pub const READ_BYTES: usize = 1 << 20;

/// Splits that one source task holds open at once; more wait, and hold the watermark back.
pub const OPEN_SPLITS_MAX: usize = 64;

/// Key groups of a job unless it says otherwise: the most tasks that it can ever be spread over.
pub const MAX_PARALLELISM_DEFAULT: u16 = 256;

/// Dead letters kept per job before the file is rotated.
pub const DEAD_LETTERS_BYTES_MAX: u64 = 64 << 20;
