//! Keyed rows: what a value table and each window of a window table consist of.
//!
//! A key index and one state column per value, with dirty tracking: which rows changed, and which
//! stored rows went, since the last freeze. A row that came and went between two freezes is in
//! neither; a stored row that went and came back is an upsert only.
//!
//! A freeze copies nothing: see [`freezing`].

mod freezing;

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, FieldRef};
use millpond_core::Result;
use millpond_core::key::stable_hashes;

use self::freezing::{DIRTY, Freezing, STORED};
use crate::column::StateColumn;
use crate::key_index::KeyIndex;

pub(crate) use self::freezing::{Changes, Piece};

/// Rows of state, each under its key.
#[derive(Debug)]
pub struct KeyedRows {
    index: KeyIndex,
    columns: Vec<StateColumn>,
    /// What is known of each slot: whether it is dirty or frozen, and whether the store knows its
    /// key, as of the last freeze or load.
    flags: Vec<u8>,
    /// Which of the two bits of [`DIRTY`] now means "dirty"; the other one means "frozen".
    dirty_bit: u8,
    dirty_slots: Vec<u32>,
    stored_rows: usize,
    /// Keys of stored rows that were removed since the last freeze.
    gone: Vec<Piece>,
    /// What was frozen and is not yet copied.
    freezing: Option<Freezing>,
    /// Which slots were used since the hand has passed them; empty while rows stay in memory.
    recent: Vec<bool>,
    /// Where the search for cold rows goes on.
    hand: u32,
}

impl KeyedRows {
    /// No rows, with key columns of these types and these value columns.
    ///
    /// Errors: *Invalid* for a type that cannot be a key.
    pub fn new(keys: &[DataType], values: &[FieldRef]) -> Result<Self> {
        Ok(Self {
            index: KeyIndex::new(keys)?,
            columns: values.iter().map(|field| StateColumn::new(field)).collect(),
            flags: Vec::new(),
            dirty_bit: DIRTY & DIRTY.wrapping_neg(),
            dirty_slots: Vec::new(),
            stored_rows: 0,
            gone: Vec::new(),
            freezing: None,
            recent: Vec::new(),
            hand: 0,
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
        self.use_slots(slots);
        self.mark_dirty(slots)
    }

    /// These groups are gone: their numbers mean other groups from now on.
    pub fn forget_groups(&mut self, groups: &[u32]) {
        self.index.forget_groups(groups);
    }

    /// The slot of each row's key, in `slots`; [`NO_SLOT`] where there is none.
    pub fn find(&mut self, keys: &[ArrayRef], hashes: &[u64], slots: &mut Vec<u32>) -> Result<()> {
        self.index.find(keys, hashes, slots)
    }

    /// Says that rows are in use, so that they leave memory after others.
    pub fn use_slots(&mut self, slots: &[u32]) {
        if self.recent.is_empty() {
            return;
        }
        self.recent.resize(self.index.slots(), true);
        for slot in slots {
            if let Some(recent) = self.recent.get_mut(*slot as usize) {
                *recent = true;
            }
        }
    }

    /// Up to `count` rows that were not used for long, none of them `pinned`: the hand of a clock
    /// passes over the slots and gives each used one a second chance.
    pub fn cold_slots(&mut self, count: usize, pinned: impl Fn(u32) -> bool) -> Vec<u32> {
        let slots = self.index.slots() as u32;
        self.recent.resize(slots as usize, false);
        let mut cold = Vec::new();
        for _ in 0..2 * u64::from(slots) {
            if cold.len() == count {
                break;
            }
            let slot = self.hand % slots;
            self.hand = slot + 1;
            if std::mem::replace(&mut self.recent[slot as usize], false) || !self.index.is_live(slot) {
                continue;
            }
            if !pinned(slot) {
                // Chosen; a full turn must not choose it again.
                self.recent[slot as usize] = true;
                cold.push(slot);
            }
        }
        cold
    }

    /// Takes rows out of memory: their keys and values, whether they are dirty, and whether the store
    /// knows them.
    pub(crate) fn evict(&mut self, slots: &[u32]) -> Result<(Vec<ArrayRef>, Vec<bool>, Vec<bool>)> {
        if self.freezing.is_some() {
            self.copy_before_write(slots.to_vec())?;
        }
        let mut columns = self.index.keys(slots)?;
        for column in &self.columns {
            columns.push(column.gather(slots)?);
        }
        let flagged = |bit: u8| -> Vec<bool> {
            slots.iter().map(|slot| self.flags[*slot as usize] & bit != 0).collect()
        };
        let (dirty, stored) = (flagged(self.dirty_bit), flagged(STORED));
        for slot in slots {
            self.index.remove(*slot);
            self.flags[*slot as usize] &= !STORED;
            self.columns.iter_mut().for_each(|column| column.reset(*slot));
        }
        self.stored_rows -= stored.iter().filter(|stored| **stored).count();
        Ok((columns, dirty, stored))
    }

    /// Takes rows back into memory; gives their slots.
    pub(crate) fn admit(
        &mut self,
        keys: &[ArrayRef],
        values: &[ArrayRef],
        dirty: &[bool],
        stored: &[bool],
    ) -> Result<Vec<u32>> {
        let mut slots = Vec::new();
        self.upsert(keys, &stable_hashes(keys, dirty.len())?, None, &mut slots)?;
        for (column, array) in self.columns.iter_mut().zip(values) {
            column.store(&slots, array)?;
        }
        let those = |flags: &[bool]| -> Vec<u32> {
            slots.iter().zip(flags).filter(|(_, flag)| **flag).map(|(slot, _)| *slot).collect()
        };
        self.mark_stored(&those(stored));
        self.mark_dirty(&those(dirty))?;
        self.use_slots(&slots);
        Ok(slots)
    }

    /// The value columns.
    pub fn columns(&self) -> &[StateColumn] {
        &self.columns
    }

    /// The value columns, to be changed at slots that are dirty: a row that is frozen and not yet
    /// copied was copied when it became dirty again.
    pub fn columns_mut(&mut self) -> &mut [StateColumn] {
        &mut self.columns
    }

    /// Says that these rows are going to change.
    pub fn mark_dirty(&mut self, slots: &[u32]) -> Result<()> {
        let known = self.dirty_slots.len();
        for slot in slots {
            let flags = &mut self.flags[*slot as usize];
            if *flags & self.dirty_bit == 0 {
                *flags |= self.dirty_bit;
                self.dirty_slots.push(*slot);
            }
        }
        match &self.freezing {
            Some(_) if self.dirty_slots.len() > known => {
                let touched = self.dirty_slots[known..].to_vec();
                self.copy_before_write(touched)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Removes rows; each slot must hold one.
    pub fn remove(&mut self, slots: &[u32]) -> Result<()> {
        if self.freezing.is_some() {
            self.copy_before_write(slots.to_vec())?;
        }
        let is_stored = |slot: &u32| self.flags[*slot as usize] & STORED != 0;
        let stored: Vec<u32> = slots.iter().copied().filter(is_stored).collect();
        if !stored.is_empty() {
            self.gone.push(Piece { columns: self.index.keys(&stored)?, rows: stored.len() });
        }
        for slot in slots {
            self.index.remove(*slot);
            self.flags[*slot as usize] &= !STORED;
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
        let frozen = self.freezing.as_ref().map_or(0, Freezing::bytes);
        let slots = self.flags.capacity() + self.dirty_slots.capacity() * 4;
        self.index.bytes() + columns + self.payload() + slots + frozen
    }

    fn payload(&self) -> usize {
        self.columns.iter().map(StateColumn::payload).sum()
    }

    /// Bytes that its live rows take, estimated.
    pub fn used_bytes(&self) -> usize {
        let (live, slots) = (self.index.len() as u128, self.index.slots().max(1) as u128);
        let payload = self.payload();
        payload + ((self.bytes() - payload) as u128 * live / slots) as usize
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
        let before = self.flags.len();
        let created = self.index.upsert_in_groups(keys, hashes, groups, slots)?;
        let total = self.index.slots();
        if total > before {
            self.columns.iter_mut().for_each(|column| column.resize(total));
            self.flags.resize(total, 0);
        }
        for slot in created.into_iter().filter(|slot| (*slot as usize) < before) {
            self.columns.iter_mut().for_each(|column| column.reset(slot));
            self.forget_frozen(slot);
        }
        Ok(())
    }

    fn mark_stored(&mut self, slots: &[u32]) {
        for slot in slots {
            let flags = &mut self.flags[*slot as usize];
            self.stored_rows += usize::from(*flags & STORED == 0);
            *flags |= STORED;
        }
    }
}

#[cfg(test)]
mod tests;
