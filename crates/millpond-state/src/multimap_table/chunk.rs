//! A chunk: up to a few thousand stored rows, their chain links and what is known of them.
//!
//! Rows keep their place in a chunk for ever. Small appends are kept as pieces and merged like
//! the digits of a binary counter, so that one-row epochs cost a logarithm of copies rather than
//! a batch each.

use arrow::array::{Array, RecordBatch, UInt64Array};
use arrow::compute::concat_batches;
use arrow::row::Rows;
use millpond_core::time::timestamp_values;
use millpond_core::{Result, Timestamp};

use super::keys::{EncodedKeys, Keys};

/// Rows of a chunk, at most, unless one append is larger. One chunk is what expiry drops.
pub(super) const CHUNK_ROWS: usize = 8192;

/// The place of a stored row; it stays valid until the row is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RowId {
    pub(super) chunk: u32,
    pub(super) row: u32,
}

impl RowId {
    /// The place of the row that was appended so many rows later by the same call.
    #[must_use]
    pub fn plus(self, rows: usize) -> Self {
        Self { chunk: self.chunk, row: self.row + rows as u32 }
    }

    /// No row: the end of a chain.
    pub const NONE: RowId = RowId { chunk: u32::MAX, row: u32::MAX };
}

/// What an outer, semi or anti join knows of a stored row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Partners {
    /// Rows of the other side that it is paired with.
    pub count: u32,
    /// Whether the join's output has it by itself, rather than in pairs.
    pub shown: bool,
}

/// The row numbers (`_row`) of a chunk.
#[derive(Debug, Clone)]
pub(super) enum Numbers {
    /// Consecutive, from this one.
    From(u64),
    /// As they were loaded.
    Loaded(UInt64Array),
}

impl Numbers {
    pub(super) fn slice(&self, start: usize, length: usize) -> UInt64Array {
        match self {
            Numbers::From(first) => {
                let first = first + start as u64;
                UInt64Array::from_iter_values(first..first + length as u64)
            }
            Numbers::Loaded(numbers) => numbers.slice(start, length),
        }
    }
}

/// Rows that are to be written or reported gone: a slice of a chunk, shared with it.
#[derive(Debug)]
pub(super) struct Slice {
    pub(super) rows: RecordBatch,
    pub(super) numbers: Numbers,
    /// Place of the first row in its chunk, by which `numbers` counts.
    pub(super) start: usize,
    /// Which rows are meant; `None`: all.
    pub(super) keep: Option<Vec<bool>>,
}

#[derive(Debug)]
pub(super) struct Chunk {
    pieces: Vec<RecordBatch>,
    starts: Vec<usize>,
    rows: usize,
    bytes: usize,
    numbers: Numbers,
    /// Per row: the next row of the same key.
    pub(super) next: Vec<RowId>,
    /// Per row: its key, for keys that are not words.
    keys: Option<Rows>,
    /// Per row: a hash of all columns, if rows are taken back.
    pub(super) fingerprints: Vec<u64>,
    /// Per row: its partners, if they are counted.
    pub(super) partners: Option<Vec<Partners>>,
    /// Which rows are gone; empty while none is.
    dead: Vec<bool>,
    /// Rows that were clean when they went, since the last freeze.
    gone: Vec<u32>,
    pub(super) live: usize,
    pub(super) time_max: Timestamp,
    /// No live row has a smaller time.
    pub(super) time_min: Timestamp,
}

impl Chunk {
    pub(super) fn new(numbers: Numbers, keys: Option<Rows>, counts_partners: bool) -> Self {
        Self {
            pieces: Vec::new(),
            starts: Vec::new(),
            rows: 0,
            bytes: 0,
            numbers,
            next: Vec::new(),
            keys,
            fingerprints: Vec::new(),
            partners: counts_partners.then(Vec::new),
            dead: Vec::new(),
            gone: Vec::new(),
            live: 0,
            time_max: Timestamp::MIN,
            time_min: Timestamp::MAX,
        }
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn numbers(&self) -> &Numbers {
        &self.numbers
    }

    pub(super) fn bytes(&self) -> usize {
        let keys = self.keys.as_ref().map_or(0, Rows::size);
        let partners = self.partners.as_ref().map_or(0, |partners| size_of_val(partners.as_slice()));
        self.bytes + keys + partners + self.rows * (size_of::<RowId>() + size_of::<u64>())
    }

    pub(super) fn has_room(&self, rows: usize) -> bool {
        self.rows + rows <= CHUNK_ROWS
    }

    /// Adds rows at the end, as yet unlinked.
    pub(super) fn push(&mut self, rows: RecordBatch, keys: &Keys) -> Result<()> {
        let count = rows.num_rows();
        if let (Some(stored), EncodedKeys::Bytes(new)) = (&mut self.keys, &keys.encoded) {
            new.iter().for_each(|key| stored.push(key));
        }
        self.next.resize(self.rows + count, RowId::NONE);
        if let Some(partners) = &mut self.partners {
            partners.resize(self.rows + count, Partners::default());
        }
        if !self.dead.is_empty() {
            self.dead.resize(self.rows + count, false);
        }
        self.bytes += batch_bytes(&rows);
        self.starts.push(self.rows);
        self.pieces.push(rows);
        self.rows += count;
        self.live += count;
        while self.pieces.len() > 1 && self.last_two_are_alike() {
            self.merge_last(2)?;
        }
        Ok(())
    }

    fn last_two_are_alike(&self) -> bool {
        let [.., before, last] = self.pieces.as_slice() else { return false };
        last.num_rows() >= before.num_rows()
    }

    fn merge_last(&mut self, count: usize) -> Result<()> {
        let from = self.pieces.len() - count;
        let merged = concat_batches(&self.pieces[from].schema(), &self.pieces[from..])?;
        self.bytes -= self.pieces[from..].iter().map(batch_bytes).sum::<usize>();
        self.bytes += batch_bytes(&merged);
        self.pieces.truncate(from);
        self.starts.truncate(from + 1);
        self.pieces.push(merged);
        Ok(())
    }

    /// No more rows will come: one piece is enough.
    pub(super) fn seal(&mut self) -> Result<()> {
        if self.pieces.len() > 1 { self.merge_last(self.pieces.len()) } else { Ok(()) }
    }

    /// Remembers the times of `rows`, by which the chunk and its rows may expire.
    pub(super) fn note_times(&mut self, rows: &RecordBatch, time_column: usize) -> Result<()> {
        let times = times(rows, time_column)?;
        // A time that is NULL is never met again.
        self.time_max = times.iter().copied().max().unwrap_or(Timestamp::MIN).max(self.time_max);
        self.time_min = times.iter().copied().min().unwrap_or(Timestamp::MAX).min(self.time_min);
        Ok(())
    }

    /// The time of a row.
    pub(super) fn time(&self, time_column: usize, row: u32) -> Result<Timestamp> {
        let (piece, at) = self.locate(row);
        Ok(times(&self.pieces[piece].slice(at, 1), time_column)?[0])
    }

    /// Which rows have times at or below `through`; the other live ones are the oldest from now on.
    pub(super) fn split_times(&mut self, time_column: usize, through: Timestamp) -> Result<Vec<bool>> {
        self.seal()?;
        let times = times(&self.pieces[0], time_column)?;
        let younger = (0..times.len()).filter(|row| times[*row] > through && !self.is_dead(*row));
        self.time_min = younger.map(|row| times[row]).min().unwrap_or(Timestamp::MAX);
        Ok(times.into_iter().map(|time| time <= through).collect())
    }

    pub(super) fn key(&self, row: u32) -> &[u8] {
        self.keys.as_ref().map_or(&[], |keys| keys.row(row as usize).data())
    }

    /// The piece that holds a row, and the row's place in it.
    pub(super) fn locate(&self, row: u32) -> (usize, usize) {
        let row = row as usize;
        let piece = self.starts.partition_point(|start| *start <= row) - 1;
        (piece, row - self.starts[piece])
    }

    pub(super) fn pieces(&self) -> &[RecordBatch] {
        &self.pieces
    }

    pub(super) fn is_dead(&self, row: usize) -> bool {
        !self.dead.is_empty() && self.dead[row]
    }

    /// Marks a row that its chain no longer leads to.
    pub(super) fn bury(&mut self, row: u32) {
        if self.dead.is_empty() {
            self.dead.resize(self.rows, false);
        }
        self.dead[row as usize] = true;
        self.live -= 1;
    }

    /// Remembers a buried row that the store knows; whether it is the first since the last freeze.
    pub(super) fn report(&mut self, row: u32) -> bool {
        self.gone.push(row);
        self.gone.len() == 1
    }

    /// The live rows from `start` on.
    pub(super) fn live_from(&self, start: usize) -> Vec<Slice> {
        let alive = |row: usize| !self.is_dead(row);
        self.slices(start, self.rows, (self.live < self.rows).then_some(&alive))
    }

    /// Takes the rows that the store knows and that are gone since the last freeze.
    pub(super) fn take_gone(&mut self) -> Vec<Slice> {
        let mut mask = vec![false; self.rows];
        for row in self.gone.drain(..) {
            mask[row as usize] = true;
        }
        self.slices(0, self.rows, Some(&|row| mask[row]))
    }

    pub(super) fn has_gone(&self) -> bool {
        !self.gone.is_empty()
    }

    fn slices(&self, from: usize, to: usize, keep: Option<&dyn Fn(usize) -> bool>) -> Vec<Slice> {
        let mut slices = Vec::new();
        for (piece, piece_start) in self.pieces.iter().zip(&self.starts) {
            let start = from.max(*piece_start);
            let end = to.min(piece_start + piece.num_rows());
            if start < end {
                slices.push(Slice {
                    rows: piece.slice(start - piece_start, end - start),
                    numbers: self.numbers.clone(),
                    start,
                    keep: keep.map(|keep| (start..end).map(keep).collect()),
                });
            }
        }
        slices
    }
}

/// The largest time of a column; [`Timestamp::MIN`] if all are NULL.
/// The times of rows; NULL is before all.
fn times(rows: &RecordBatch, column: usize) -> Result<Vec<Timestamp>> {
    let column = rows.column(column);
    let (values, precision) = timestamp_values(column)?;
    let time = |(row, value): (usize, &i64)| match column.is_valid(row) {
        true => precision.to_timestamp(*value),
        false => Timestamp::MIN,
    };
    Ok(values.iter().enumerate().map(time).collect())
}

fn batch_bytes(rows: &RecordBatch) -> usize {
    let bytes = |column: &arrow::array::ArrayRef| {
        column.to_data().get_slice_memory_size().unwrap_or_else(|_| column.get_array_memory_size())
    };
    rows.columns().iter().map(bytes).sum()
}
