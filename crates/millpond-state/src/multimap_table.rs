//! Multimap table: key → rows, the working state of a join's side.
//!
//! Rows stay in the Arrow batches in which they came, grouped into chunks; an index leads from a
//! key to its oldest row, and links lead on to younger ones. Nothing is copied to be found, and
//! since Arrow arrays never change, a freeze only shares the batches added since the last one.
//!
//! ```text
//! index: hash, key ─▶ (first, last)          chunk 0        chunk 1
//!                        │                   ┌──────┐       ┌──────┐
//!                        └──────────────────▶│ row  │──next▶│ row  │
//!                                            └──────┘       └──────┘
//! ```
//!
//! Invariants: a row is in exactly one chain or dead; a chain holds rows of one key, oldest first
//! (rows moved out of a sparse chunk count as new);
//! rows before `dirty_from` are known to the store, the others are not; (key, `_row`) names a row
//! for ever: numbers go on above the largest one loaded, and equal numbers of two tasks belong to
//! different keys. Partners are not part of the state: they follow from the rows of both sides, and
//! whoever counts them does so anew after a load.

mod chunk;
mod keys;
mod partners;
mod persisted;

use arrow::array::{Array, ArrayRef, RecordBatch, UInt32Array};
use arrow::compute::{interleave, take, take_record_batch};
use arrow::datatypes::{DataType, FieldRef, SchemaRef};
use arrow::row::{RowConverter, SortField};
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use millpond_core::{Error, KeyGroupRange, KeyHashes, Result, Timestamp};

use self::chunk::{Chunk, Numbers, Slice};
pub use self::chunk::{Partners, RowId};
pub use self::keys::Keys;
use self::keys::{EncodedKeys, KeyEncoder};
use self::persisted::Layout;
use crate::table::{Delta, Frozen, Scope, StateTable, TableDef};

/// What a multimap table holds.
#[derive(Debug, Clone)]
pub struct MultimapSpec {
    /// Its name within the operator.
    pub name: String,
    /// The columns of its rows.
    pub rows: SchemaRef,
    /// The key columns, in the order in which both sides of a join name them.
    pub keys: Vec<usize>,
    /// Whether NULL is a key like any other; else no row with a NULL key may be added.
    pub null_keys: bool,
    /// The timestamp column by which chunks expire.
    pub time_column: Option<usize>,
    /// Whether rows are taken back by [`MultimapTable::remove`].
    pub retracts: bool,
    /// By how many of its first columns a row that is taken back is told from others.
    pub compared: usize,
    /// Whether each row has [`Partners`].
    pub counts_partners: bool,
    /// Number of key groups of the job.
    pub max_parallelism: u16,
}

/// Rows by key; see the module.
#[derive(Debug)]
pub struct MultimapTable {
    spec: MultimapSpec,
    layout: Layout,
    encoder: KeyEncoder,
    fingerprints: Option<RowConverter>,
    index: HashTable<Chain>,
    /// By number; `None` where all rows are gone.
    chunks: Vec<Option<Box<Chunk>>>,
    next_number: u64,
    /// The first row that the store does not know.
    dirty_from: RowId,
    /// Chunks with rows that the store knows and that are gone.
    reported: Vec<u32>,
    /// Such rows of chunks that are themselves gone.
    gone: Vec<Slice>,
    /// What was added and what is gone, as of a freeze.
    frozen: Option<(Vec<Slice>, Vec<Slice>)>,
    live: usize,
    /// Sparse chunks whose rows wait for [`MultimapTable::settle`].
    sparse: Vec<u32>,
    /// Scratch of `gather`: per chunk, where its arrays begin in the current call.
    places: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Chain {
    hash: u64,
    word: u64,
    first: RowId,
    last: RowId,
}

/// Where a probe goes on: a probing row, and the stored row that it meets next.
#[derive(Debug, Clone, Copy)]
pub struct ProbeCursor {
    row: usize,
    at: RowId,
}

impl Default for ProbeCursor {
    fn default() -> Self {
        Self { row: 0, at: RowId::NONE }
    }
}

/// Pairs of a probing row and a stored row of the same key.
#[derive(Debug, Default)]
pub struct Pairs {
    /// Indices of probing rows, ascending.
    pub probing: Vec<u32>,
    /// Stored rows of each probing row's key.
    pub stored: Vec<RowId>,
}

impl Pairs {
    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.probing.len()
    }
    /// Whether there is no pair.
    pub fn is_empty(&self) -> bool {
        self.probing.is_empty()
    }
    /// Keeps the pairs at `kept`.
    #[must_use]
    pub fn take(&self, kept: &[usize]) -> Self {
        Self {
            probing: kept.iter().map(|i| self.probing[*i]).collect(),
            stored: kept.iter().map(|i| self.stored[*i]).collect(),
        }
    }
}

impl MultimapTable {
    /// An empty table.
    ///
    /// Errors: *Invalid* if a column cannot be a key or, with `retracts`, cannot be compared.
    pub fn new(spec: MultimapSpec) -> Result<Self> {
        let types: Vec<DataType> =
            spec.keys.iter().map(|k| spec.rows.field(*k).data_type().clone()).collect();
        Ok(Self {
            layout: Layout::new(&spec),
            encoder: KeyEncoder::new(&types, spec.null_keys)?,
            fingerprints: spec
                .retracts
                .then(|| row_converter(&spec.rows.fields()[..spec.compared]))
                .transpose()?,
            spec,
            index: HashTable::new(),
            chunks: Vec::new(),
            next_number: 0,
            dirty_from: RowId { chunk: 0, row: 0 },
            reported: Vec::new(),
            gone: Vec::new(),
            frozen: None,
            live: 0,
            sparse: Vec::new(),
            places: Vec::new(),
        })
    }

    /// The keys of a batch of this table's rows. `hashes` are the stable hashes of the key
    /// columns, if an exchange has computed them.
    pub fn keys(&self, rows: &RecordBatch, hashes: Option<KeyHashes>) -> Result<Keys> {
        let columns: Vec<ArrayRef> = self.spec.keys.iter().map(|k| rows.column(*k).clone()).collect();
        self.encoder.encode(&columns, rows.num_rows(), hashes)
    }

    /// Adds rows; they get consecutive places, of which this is the first.
    pub fn append(&mut self, rows: RecordBatch, keys: &Keys) -> Result<RowId> {
        assert_eq!(rows.num_rows(), keys.len(), "one key per row");
        if rows.num_rows() == 0 {
            return Ok(RowId::NONE);
        }
        let before = self.chunks.len();
        let chunk = self.chunk_for(rows.num_rows())?;
        self.next_number += rows.num_rows() as u64;
        let first = self.fill(chunk, rows, keys)?;
        let sealed = (chunk as usize == before).then(|| chunk.checked_sub(1)).flatten();
        sealed.map_or(Ok(()), |sealed| self.vacate_if_sparse(sealed))?;
        Ok(first)
    }

    /// The chunk that takes `rows` more rows, as `_row` continues.
    fn chunk_for(&mut self, rows: usize) -> Result<u32> {
        if let Some(Some(last)) = self.chunks.last_mut() {
            let open = matches!(last.numbers(), Numbers::From(first) if first + last.rows() as u64 == self.next_number);
            if open && last.has_room(rows) {
                return Ok(self.chunks.len() as u32 - 1);
            }
            last.seal()?;
        }
        self.add_chunk(Numbers::From(self.next_number))
    }

    fn add_chunk(&mut self, numbers: Numbers) -> Result<u32> {
        let chunk =
            u32::try_from(self.chunks.len()).ok().filter(|chunk| *chunk != RowId::NONE.chunk).ok_or_else(
                || Error::internal(format!("state table {:?} has no chunk numbers left", self.spec.name)),
            )?;
        let chunk_of_rows = Chunk::new(numbers, self.encoder.store(), self.spec.counts_partners);
        self.chunks.push(Some(Box::new(chunk_of_rows)));
        Ok(chunk)
    }

    fn fill(&mut self, chunk: u32, rows: RecordBatch, keys: &Keys) -> Result<RowId> {
        let fingerprints = self
            .fingerprints
            .as_ref()
            .map(|converter| fingerprints(converter, &rows, self.spec.compared))
            .transpose()?;
        let count = rows.num_rows();
        let target = self.chunks[chunk as usize].as_mut().expect("the last chunk is there");
        let first = target.rows() as u32;
        if let Some(column) = self.spec.time_column {
            target.note_times(&rows, column)?;
        }
        target.push(rows, keys)?;
        target.fingerprints.extend(fingerprints.into_iter().flatten());
        self.live += count;
        for row in 0..count {
            self.link(keys, row, RowId { chunk, row: first + row as u32 });
        }
        Ok(RowId { chunk, row: first })
    }

    fn link(&mut self, keys: &Keys, row: usize, id: RowId) {
        let (hash, word) = (keys.hashes[row], keys.word(row));
        let chunks = &self.chunks;
        match self.index.entry(hash, |chain| same_key(chunks, chain, keys, row), |chain| chain.hash) {
            Entry::Occupied(mut entry) => {
                let before = std::mem::replace(&mut entry.get_mut().last, id);
                chunk_mut(&mut self.chunks, before).next[before.row as usize] = id;
            }
            Entry::Vacant(entry) => {
                entry.insert(Chain { hash, word, first: id, last: id });
            }
        }
    }

    /// Pairs each probing row from `cursor` on with the stored rows of its key, until there are
    /// `pairs_max`. Answers whether the probe is complete.
    pub fn probe(&self, keys: &Keys, cursor: &mut ProbeCursor, pairs_max: usize, pairs: &mut Pairs) -> bool {
        while cursor.row < keys.len() {
            let mut at = if cursor.at == RowId::NONE { self.first(keys, cursor.row) } else { cursor.at };
            while at != RowId::NONE {
                if pairs.len() == pairs_max {
                    cursor.at = at;
                    return false;
                }
                pairs.probing.push(cursor.row as u32);
                pairs.stored.push(at);
                at = self.next(at);
            }
            *cursor = ProbeCursor { row: cursor.row + 1, at: RowId::NONE };
        }
        true
    }

    fn first(&self, keys: &Keys, row: usize) -> RowId {
        self.index
            .find(keys.hashes[row], |chain| same_key(&self.chunks, chain, keys, row))
            .map_or(RowId::NONE, |chain| chain.first)
    }

    fn next(&self, id: RowId) -> RowId {
        chunk_of(&self.chunks, id).next[id.row as usize]
    }

    /// Columns of stored rows.
    pub fn gather(&mut self, rows: &[RowId], columns: &[usize]) -> Result<Vec<ArrayRef>> {
        let (pieces, indices) = self.locate(rows);
        let gathered = |column: &usize| -> Result<ArrayRef> {
            let arrays: Vec<&dyn Array> = pieces.iter().map(|piece| piece.column(*column).as_ref()).collect();
            match arrays.as_slice() {
                [] => Ok(arrow::array::new_empty_array(self.spec.rows.field(*column).data_type())),
                [only] => Ok(take(
                    *only,
                    &UInt32Array::from_iter_values(indices.iter().map(|(_, row)| *row as u32)),
                    None,
                )?),
                many => Ok(interleave(many, &indices)?),
            }
        };
        columns.iter().map(gathered).collect()
    }

    /// The pieces in which `rows` lie, and where.
    fn locate(&mut self, rows: &[RowId]) -> (Vec<RecordBatch>, Vec<(usize, usize)>) {
        const UNUSED: u32 = u32::MAX;
        self.places.resize(self.chunks.len(), UNUSED);
        let mut pieces: Vec<RecordBatch> = Vec::new();
        let mut indices = Vec::with_capacity(rows.len());
        for id in rows {
            let chunk = chunk_of(&self.chunks, *id);
            let place = &mut self.places[id.chunk as usize];
            if *place == UNUSED {
                *place = pieces.len() as u32;
                pieces.extend(chunk.pieces().iter().cloned());
            }
            let (piece, row) = chunk.locate(id.row);
            indices.push((*place as usize + piece, row));
        }
        for id in rows {
            self.places[id.chunk as usize] = UNUSED;
        }
        (pieces, indices)
    }

    /// Takes back one equal stored row for each of `rows`; gives their partners, if it counts them.
    ///
    /// Errors: *Internal* (invariant 4) if a row has no equal.
    pub fn remove(&mut self, rows: &RecordBatch, keys: &Keys) -> Result<Vec<Partners>> {
        let removed = self.remove_known(rows, keys)?;
        let partners = removed.into_iter().collect::<Option<Vec<_>>>().ok_or_else(|| {
            let name = &self.spec.name;
            Error::internal(format!("invariant 4: a retraction meets no row in state table {name:?}"))
        })?;
        Ok(if self.spec.counts_partners { partners } else { Vec::new() })
    }

    /// The same where rows may have been forgotten: `None` for those.
    pub fn remove_known(&mut self, rows: &RecordBatch, keys: &Keys) -> Result<Vec<Option<Partners>>> {
        let converter = self.fingerprints.as_ref().ok_or_else(|| {
            Error::internal(format!("invariant 4: state table {:?} is append-only", self.spec.name))
        })?;
        let fingerprints = fingerprints(converter, rows, self.spec.compared)?;
        let remove = |(row, fingerprint)| self.remove_row(keys, row, fingerprint);
        fingerprints.into_iter().enumerate().map(remove).collect()
    }

    fn remove_row(&mut self, keys: &Keys, row: usize, fingerprint: u64) -> Result<Option<Partners>> {
        let Some((before, at)) = self.equal_row(keys, row, fingerprint)? else { return Ok(None) };
        let partners = self.partners(at).unwrap_or_default();
        self.unlink(keys.hashes[row], before, at);
        self.bury(at);
        self.drop_chunk_if_dead(at.chunk);
        self.vacate_if_sparse(at.chunk)?;
        Ok(Some(partners))
    }

    /// A stored row that is equal to a given one, and the row before it in its chain. Where equal
    /// rows have ages of their own it is the oldest, whatever moved or loaded them.
    fn equal_row(&self, keys: &Keys, row: usize, fingerprint: u64) -> Result<Option<(RowId, RowId)>> {
        let by_age = self.spec.time_column.filter(|time| *time >= self.spec.compared);
        let (mut before, mut at) = (RowId::NONE, self.first(keys, row));
        let mut oldest: Option<(Timestamp, (RowId, RowId))> = None;
        while at != RowId::NONE {
            let chunk = chunk_of(&self.chunks, at);
            if chunk.fingerprints[at.row as usize] == fingerprint {
                let Some(time_column) = by_age else { return Ok(Some((before, at))) };
                let time = chunk.time(time_column, at.row)?;
                if oldest.as_ref().is_none_or(|(least, _)| time < *least) {
                    oldest = Some((time, (before, at)));
                }
            }
            (before, at) = (at, self.next(at));
        }
        Ok(oldest.map(|(_, found)| found))
    }

    /// Moves the last rows of a chunk to the end, under new numbers, so that memory follows the
    /// live rows: a few that stay must not hold the many that went. Places at which partners are
    /// counted stay valid until [`Self::settle`].
    fn vacate_if_sparse(&mut self, chunk: u32) -> Result<()> {
        if !self.is_sparse(chunk) {
            return Ok(());
        }
        if self.spec.counts_partners {
            self.sparse.push(chunk);
            return Ok(());
        }
        let rows = self.clear_chunk(chunk)?;
        let keys = self.keys(&rows, None)?;
        self.append(rows, &keys).map(|_| ())
    }

    fn is_sparse(&self, chunk: u32) -> bool {
        const SPARSE: usize = 8;
        let last = chunk as usize + 1 == self.chunks.len();
        let few = |chunk: &Chunk| chunk.live * SPARSE < chunk.rows();
        !last && self.chunks[chunk as usize].as_deref().is_some_and(few)
    }

    /// Takes a row, which follows `before`, out of its chain.
    fn unlink(&mut self, hash: u64, before: RowId, id: RowId) {
        let after = self.next(id);
        if before != RowId::NONE {
            chunk_mut(&mut self.chunks, before).next[before.row as usize] = after;
            if after == RowId::NONE {
                let chain = self.index.find_mut(hash, |chain| chain.last == id).expect("a row is in a chain");
                chain.last = before;
            }
            return;
        }
        let mut entry =
            self.index.find_entry(hash, |chain| chain.first == id).expect("a first row has a chain");
        if after == RowId::NONE {
            entry.remove();
        } else {
            entry.get_mut().first = after;
        }
    }

    fn bury(&mut self, id: RowId) {
        let known = id < self.dirty_from;
        let chunk = chunk_mut(&mut self.chunks, id);
        chunk.bury(id.row);
        self.live -= 1;
        if known && chunk.report(id.row) {
            self.reported.push(id.chunk);
        }
    }

    fn drop_chunk_if_dead(&mut self, chunk: u32) {
        let slot = &mut self.chunks[chunk as usize];
        if let Some(mut dead) = slot.take_if(|chunk| chunk.live == 0)
            && dead.has_gone()
        {
            self.gone.extend(dead.take_gone());
        }
    }

    /// Drops chunks whose every time is at or below `through`; answers how many rows went.
    pub fn expire(&mut self, through: Timestamp) -> Result<usize> {
        if self.spec.time_column.is_none() {
            return Ok(0);
        }
        let old = |chunk: &Option<Box<Chunk>>| chunk.as_ref().is_some_and(|chunk| chunk.time_max <= through);
        let expired: Vec<u32> =
            (0..self.chunks.len() as u32).filter(|i| old(&self.chunks[*i as usize])).collect();
        let before = self.live;
        for chunk in expired {
            self.clear_chunk(chunk)?;
        }
        Ok(before - self.live)
    }

    /// No row has a smaller time; `None` without rows.
    pub fn oldest(&self) -> Option<Timestamp> {
        self.chunks.iter().flatten().map(|chunk| chunk.time_min).min()
    }

    /// The same for single rows too, in chunks that hold younger ones.
    pub fn expire_rows(&mut self, through: Timestamp) -> Result<usize> {
        let Some(column) = self.spec.time_column else { return Ok(0) };
        let expired = self.expire(through)?;
        let before = self.live;
        for number in 0..self.chunks.len() as u32 {
            let Some(chunk) = &mut self.chunks[number as usize] else { continue };
            if chunk.time_min > through {
                continue;
            }
            let is_old = chunk.split_times(column, through)?;
            self.take_rows(number, |row| is_old[row])?;
            if self.chunks[number as usize].is_some() {
                self.vacate_if_sparse(number)?;
            }
        }
        Ok(expired + before - self.live)
    }

    /// Drops all rows of these keys.
    pub fn forget_keys(&mut self, keys: &[ArrayRef]) -> Result<()> {
        let count = keys.first().map_or(1, |key| key.len());
        let keys = self.encoder.encode(keys, count, None)?;
        let mut chunks = Vec::new();
        for row in 0..keys.len() {
            let mut at = self.first(&keys, row);
            while at != RowId::NONE {
                let next = self.next(at);
                self.unlink(keys.hashes[row], RowId::NONE, at);
                self.bury(at);
                chunks.push(at.chunk);
                at = next;
            }
        }
        chunks.sort_unstable();
        chunks.dedup();
        for chunk in chunks {
            self.drop_chunk_if_dead(chunk);
            self.vacate_if_sparse(chunk)?;
        }
        Ok(())
    }

    /// Takes all rows out of a chunk and drops it; answers the rows that were live.
    fn clear_chunk(&mut self, chunk: u32) -> Result<RecordBatch> {
        self.take_rows(chunk, |_| true)
    }

    /// Takes rows out of a chunk, and drops it if that were all; answers those that were live.
    fn take_rows(&mut self, chunk: u32, is_meant: impl Fn(usize) -> bool) -> Result<RecordBatch> {
        let cleared = self.chunks[chunk as usize].as_mut().expect("a chunk to clear is there");
        cleared.seal()?;
        let rows = cleared.pieces()[0].clone();
        let live: Vec<usize> =
            (0..rows.num_rows()).filter(|row| !cleared.is_dead(*row) && is_meant(*row)).collect();
        let live_rows =
            take_record_batch(&rows, &UInt32Array::from_iter_values(live.iter().map(|row| *row as u32)))?;
        let keys = self.keys(&live_rows, None)?;
        for (i, row) in live.into_iter().enumerate() {
            let id = RowId { chunk, row: row as u32 };
            let before = self.before(&keys, i, id);
            self.unlink(keys.hashes[i], before, id);
            self.bury(id);
        }
        self.drop_chunk_if_dead(chunk);
        Ok(live_rows)
    }

    /// The row before `id` in its chain: usually none, since the oldest rows expire first.
    fn before(&self, keys: &Keys, row: usize, id: RowId) -> RowId {
        let (mut before, mut at) = (RowId::NONE, self.first(keys, row));
        while at != id {
            (before, at) = (at, self.next(at));
        }
        before
    }

    fn end(&self) -> RowId {
        match self.chunks.last() {
            Some(Some(last)) => RowId { chunk: self.chunks.len() as u32 - 1, row: last.rows() as u32 },
            Some(None) | None => RowId { chunk: self.chunks.len() as u32, row: 0 },
        }
    }

    /// Live rows from `start` on.
    fn live_from(&self, start: RowId) -> Vec<Slice> {
        let chunks = self.chunks.iter().enumerate().skip(start.chunk as usize);
        chunks
            .filter_map(|(i, chunk)| chunk.as_ref().map(|chunk| (i, chunk)))
            .flat_map(|(i, chunk)| {
                chunk.live_from(if i == start.chunk as usize { start.row as usize } else { 0 })
            })
            .collect()
    }

    fn take_gone(&mut self) -> Vec<Slice> {
        for chunk in std::mem::take(&mut self.reported) {
            if let Some(chunk) = &mut self.chunks[chunk as usize]
                && chunk.has_gone()
            {
                self.gone.extend(chunk.take_gone());
            }
        }
        std::mem::take(&mut self.gone)
    }
}

impl StateTable for MultimapTable {
    fn def(&self) -> &TableDef {
        self.layout.def()
    }

    /// Shares the batches added since the last freeze; they are put together by [`Frozen`].
    fn begin_freeze(&mut self, scope: Scope) -> Result<()> {
        assert!(self.frozen.is_none(), "one frozen set at a time");
        let mut gone = self.take_gone();
        if scope == Scope::Everything {
            gone.clear();
            self.dirty_from = RowId { chunk: 0, row: 0 };
        }
        self.frozen = Some((self.live_from(self.dirty_from), gone));
        self.dirty_from = self.end();
        Ok(())
    }

    fn drain(&mut self, _budget: &mut usize) -> Result<Option<Frozen>> {
        let Some((added, gone)) = self.frozen.take() else {
            return Err(Error::internal(format!("state table {:?} is not frozen", self.spec.name)));
        };
        let layout = self.layout.clone();
        Ok(Some(Frozen::new(move || {
            Ok(Delta {
                upserts: layout.rows(&added)?,
                deletes: layout.identities(&gone)?,
                expired_through: None,
            })
        })))
    }

    fn load(&mut self, rows: &RecordBatch, range: KeyGroupRange) -> Result<()> {
        if self.dirty_from != self.end() {
            return Err(Error::internal(format!(
                "state table {:?} is loaded after it was used",
                self.spec.name
            )));
        }
        let (rows, numbers, hashes) = self.layout.loaded(rows, range, self.spec.max_parallelism)?;
        if rows.num_rows() == 0 {
            return Ok(());
        }
        let largest = arrow::compute::max(&numbers).unwrap_or(0);
        self.next_number = self.next_number.max(largest + 1);
        let keys = self.keys(&rows, Some(hashes))?;
        let chunk = self.add_chunk(Numbers::Loaded(numbers))?;
        self.fill(chunk, rows, &keys)?;
        self.dirty_from = self.end();
        Ok(())
    }

    fn rows(&self) -> usize {
        self.live
    }

    fn used_bytes(&self) -> usize {
        self.bytes()
    }

    fn bytes(&self) -> usize {
        let chunks: usize = self.chunks.iter().flatten().map(|chunk| chunk.bytes()).sum();
        chunks + self.index.allocation_size()
    }
}

fn chunk_of(chunks: &[Option<Box<Chunk>>], id: RowId) -> &Chunk {
    chunks[id.chunk as usize].as_ref().expect("a linked row's chunk is there")
}

fn chunk_mut(chunks: &mut [Option<Box<Chunk>>], id: RowId) -> &mut Chunk {
    chunks[id.chunk as usize].as_mut().expect("a linked row's chunk is there")
}

fn same_key(chunks: &[Option<Box<Chunk>>], chain: &Chain, keys: &Keys, row: usize) -> bool {
    match &keys.encoded {
        EncodedKeys::Unit => true,
        EncodedKeys::Words(words) => chain.word == words[row],
        EncodedKeys::Bytes(rows) => {
            chain.hash == keys.hashes[row]
                && chunk_of(chunks, chain.first).key(chain.first.row) == rows.row(row).data()
        }
    }
}

fn row_converter(fields: &[FieldRef]) -> Result<RowConverter> {
    let fields = fields.iter().map(|field| SortField::new(field.data_type().clone())).collect();
    RowConverter::new(fields)
        .map_err(|error| Error::invalid(format!("rows that change cannot be compared: {error}")))
}

/// One hash per row over the compared columns; only ever compared within this process.
fn fingerprints(converter: &RowConverter, rows: &RecordBatch, compared: usize) -> Result<Vec<u64>> {
    use std::hash::{DefaultHasher, Hasher};
    let encoded = converter.convert_columns(&rows.columns()[..compared])?;
    let fingerprint = |row: arrow::row::Row<'_>| {
        let mut hasher = DefaultHasher::new();
        hasher.write(row.data());
        hasher.finish()
    };
    Ok(encoded.iter().map(fingerprint).collect())
}

#[cfg(test)]
mod tests;
