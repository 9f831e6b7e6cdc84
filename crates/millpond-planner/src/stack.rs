//! Room for recursion: SQL is nested as deep as its author likes, threads of a runtime have 2 MiB.
//!
//! Parsing and planning recurse over the tree. Nesting is limited, but the limit is worth more
//! stack than a worker thread of the host may have left.

/// Stack that parsing and planning want at most for the deepest statement that is accepted.
const STACK_BYTES: usize = 64 << 20;
/// With less than this left, a fresh stack is taken.
const LEFT_BYTES_MIN: usize = 16 << 20;

/// Runs `work` with enough stack, on a fresh one if need be.
pub(crate) fn with_deep_stack<T>(work: impl FnOnce() -> T) -> T {
    stacker::maybe_grow(LEFT_BYTES_MIN, STACK_BYTES, work)
}
