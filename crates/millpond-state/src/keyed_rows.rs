//! Keyed rows: what a value table and each window of a window table consist of.
//!
//! A key index and one state column per value, with dirty tracking: which rows changed, and which
//! stored rows went, since the last freeze. A row that came and went between two freezes is in
//! neither; a stored row that went and came back is an upsert only.

use arrow::array::{ArrayRef, BooleanArray};
use arrow::compute::{concat, filter};
use arrow::datatypes::{DataType, FieldRef};
use millpond_core::Result;
use millpond_core::key::stable_hashes;

use crate::column::StateColumn;
use crate::key_index::{KeyIndex, NO_SLOT};

/// Rows of state, each under its key.
#[derive(Debug)]
pub struct KeyedRows {
    index: KeyIndex,
    columns: Vec<StateColumn>,
    dirty: Vec<bool>,
    dirty_slots: Vec<u32>,
    /// Whether the store knows the slot's key, as of the last freeze or load.
    stored: Vec<bool>,
    stored_rows: usize,
    /// Keys of stored rows that were removed since the last freeze.
    gone: Vec<Vec<ArrayRef>>,
}

/// What changed, as columns: of upserts all, of deletes the keys.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    pub(crate) upserts: Vec<ArrayRef>,
    pub(crate) upsert_rows: usize,
    pub(crate) deletes: Vec<ArrayRef>,
    pub(crate) delete_rows: usize,
}

impl KeyedRows {
    /// No rows, with key columns of these types and these value columns.
    ///
    /// Errors: *Invalid* for a type that cannot be a key.
    pub fn new(keys: &[DataType], values: &[FieldRef]) -> Result<Self> {
        Ok(Self {
            index: KeyIndex::new(keys)?,
            columns: values.iter().map(|field| StateColumn::new(field)).collect(),
            dirty: Vec::new(),
            dirty_slots: Vec::new(),
            stored: Vec::new(),
            stored_rows: 0,
            gone: Vec::new(),
        })
    }

    /// The same for keys that share all columns but the last with others of their group.
    pub fn prefixed(keys: &[DataType], values: &[FieldRef]) -> Result<Self> {
        Ok(Self { index: KeyIndex::prefixed(keys)?, ..Self::new(&[], values)? })
    }

    /// The slot of each row's key, in `slots`, to be changed: they are dirty from now on. Unknown
    /// keys get a new row of defaults. `hashes` are the stable hashes of `keys`.
    pub fn slots_for(&mut self, keys: &[ArrayRef], hashes: &[u64], slots: &mut Vec<u32>) -> Result<()> {
        self.slots_in_groups(keys, hashes, None, slots)
    }

    /// The same where the group of each row is known: rows of one group have the same key but for
    /// the last column.
    pub fn slots_in_groups(
        &mut self,
        keys: &[ArrayRef],
        hashes: &[u64],
        groups: Option<&[u32]>,
        slots: &mut Vec<u32>,
    ) -> Result<()> {
        self.upsert(keys, hashes, groups, slots)?;
        self.mark_dirty(slots);
        Ok(())
    }

    /// These groups are gone: their numbers mean other groups from now on.
    pub fn forget_groups(&mut self, groups: &[u32]) {
        self.index.forget_groups(groups);
    }

    /// The slot of each row's key, in `slots`; [`NO_SLOT`] where there is none.
    pub fn find(&mut self, keys: &[ArrayRef], hashes: &[u64], slots: &mut Vec<u32>) -> Result<()> {
        self.index.find(keys, hashes, slots)
    }

    /// The value columns.
    pub fn columns(&self) -> &[StateColumn] {
        &self.columns
    }

    /// The value columns, to be changed at slots that are dirty.
    pub fn columns_mut(&mut self) -> &mut [StateColumn] {
        &mut self.columns
    }

    /// Remembers that these rows change.
    pub fn mark_dirty(&mut self, slots: &[u32]) {
        for slot in slots {
            let dirty = &mut self.dirty[*slot as usize];
            if !*dirty {
                *dirty = true;
                self.dirty_slots.push(*slot);
            }
        }
    }

    /// Removes rows; each slot must hold one.
    pub fn remove(&mut self, slots: &[u32]) -> Result<()> {
        let stored: Vec<u32> = slots.iter().copied().filter(|slot| self.stored[*slot as usize]).collect();
        if !stored.is_empty() {
            self.gone.push(self.index.keys(&stored)?);
        }
        for slot in slots {
            self.index.remove(*slot);
            self.stored[*slot as usize] = false;
        }
        self.stored_rows -= stored.len();
        Ok(())
    }

    /// The keys at `slots`, as columns.
    pub fn keys(&self, slots: &[u32]) -> Result<Vec<ArrayRef>> {
        self.index.keys(slots)
    }

    /// Up to `max` live slots from slot `from` on, ascending.
    pub fn live_slots(&self, from: u32, max: usize) -> Vec<u32> {
        (from..self.index.slots() as u32).filter(|slot| self.index.is_live(*slot)).take(max).collect()
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Bytes held in memory, estimated.
    pub fn bytes(&self) -> usize {
        let columns: usize = self.columns.iter().map(StateColumn::bytes).sum();
        self.index.bytes() + columns + self.dirty.capacity() * 2 + self.dirty_slots.capacity() * 4
    }

    /// Keys of all rows that the store knows, of live ones and of those that are gone since.
    pub(crate) fn stored_keys(&mut self) -> Result<Vec<ArrayRef>> {
        let gone = self.take_gone()?;
        let mut stored = self.live_slots(0, usize::MAX);
        stored.retain(|slot| self.stored[*slot as usize]);
        let keys = self.index.keys(&stored)?;
        match (stored.is_empty(), gone.is_empty()) {
            (_, true) => Ok(keys),
            (true, false) => Ok(gone),
            (false, false) => keys.iter().zip(&gone).map(|(keys, gone)| Ok(concat(&[keys, gone])?)).collect(),
        }
    }

    /// How many of the rows the store knows; with those that are gone since.
    pub(crate) fn is_stored(&self) -> bool {
        self.stored_rows > 0 || !self.gone.is_empty()
    }

    /// Takes what changed since the last time, and starts anew.
    pub(crate) fn take_changes(&mut self) -> Result<Changes> {
        let slots = std::mem::take(&mut self.dirty_slots);
        slots.iter().for_each(|slot| self.dirty[*slot as usize] = false);
        let live: Vec<u32> = slots.into_iter().filter(|slot| self.index.is_live(*slot)).collect();
        let deletes = self.take_gone()?;
        let delete_rows = deletes.first().map_or(0, |column| column.len());
        Ok(Changes { upserts: self.store(&live)?, upsert_rows: live.len(), deletes, delete_rows })
    }

    /// Takes everything as upserts, and starts anew.
    pub(crate) fn take_all(&mut self) -> Result<Changes> {
        self.dirty_slots.clear();
        self.dirty.fill(false);
        self.gone.clear();
        let live = self.live_slots(0, usize::MAX);
        Ok(Changes { upserts: self.store(&live)?, upsert_rows: live.len(), ..Changes::default() })
    }

    /// Puts back rows of a snapshot: keys and values in the order of the columns. They are clean.
    pub(crate) fn load(&mut self, keys: &[ArrayRef], values: &[ArrayRef], rows: usize) -> Result<()> {
        let mut slots = Vec::new();
        let hashes = stable_hashes(keys, rows)?;
        self.upsert(keys, &hashes, None, &mut slots)?;
        for (column, array) in self.columns.iter_mut().zip(values) {
            column.store(&slots, array)?;
        }
        self.mark_stored(&slots);
        Ok(())
    }

    fn upsert(
        &mut self,
        keys: &[ArrayRef],
        hashes: &[u64],
        groups: Option<&[u32]>,
        slots: &mut Vec<u32>,
    ) -> Result<()> {
        let before = self.dirty.len();
        let created = self.index.upsert_in_groups(keys, hashes, groups, slots)?;
        let total = self.index.slots();
        if total > before {
            self.columns.iter_mut().for_each(|column| column.resize(total));
            self.dirty.resize(total, false);
            self.stored.resize(total, false);
        }
        for slot in created.into_iter().filter(|slot| (*slot as usize) < before) {
            self.columns.iter_mut().for_each(|column| column.reset(slot));
        }
        Ok(())
    }

    /// The whole rows at `slots`, which the store knows from now on.
    fn store(&mut self, slots: &[u32]) -> Result<Vec<ArrayRef>> {
        self.mark_stored(slots);
        let mut arrays = self.index.keys(slots)?;
        for column in &self.columns {
            arrays.push(column.gather(slots)?);
        }
        Ok(arrays)
    }

    fn mark_stored(&mut self, slots: &[u32]) {
        for slot in slots {
            let stored = &mut self.stored[*slot as usize];
            self.stored_rows += usize::from(!*stored);
            *stored = true;
        }
    }

    /// Keys of stored rows that are gone for good: a key that came back is an upsert.
    fn take_gone(&mut self) -> Result<Vec<ArrayRef>> {
        let gone = std::mem::take(&mut self.gone);
        let Some(first) = gone.first() else { return Ok(Vec::new()) };
        let mut keys = Vec::with_capacity(first.len());
        for column in 0..first.len() {
            let parts: Vec<&dyn arrow::array::Array> =
                gone.iter().map(|part| part[column].as_ref()).collect();
            keys.push(concat(&parts)?);
        }
        let Some(rows) = keys.first().map(|column| column.len()) else { return Ok(keys) };
        let mut slots = Vec::new();
        self.index.find(&keys, &stable_hashes(&keys, rows)?, &mut slots)?;
        let absent: BooleanArray = slots.iter().map(|slot| Some(*slot == NO_SLOT)).collect();
        keys.iter().map(|column| Ok(filter(column, &absent)?)).collect()
    }
}
