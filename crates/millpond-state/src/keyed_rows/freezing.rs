//! Freeze and drain: a snapshot of keyed rows without a pause.
//!
//! A freeze swaps the list of dirty slots and the meaning of two bits per slot, whatever the number
//! of rows. The frozen rows are then copied a slice at a time, column by column, between the
//! batches. A row that is to change before its turn is copied first, so that the copies show all
//! rows as they were at the freeze.
//!
//! ```text
//! freeze:  dirty ─▶ frozen      drain:  [copied | to do ……]       write to a frozen slot:
//!          {}    ─▶ dirty                       ▲ next            copy it, then write
//! ```
//!
//!  1. A slot has the frozen bit only while a freeze is under way, so that the bits may be swapped.
//!  2. A slot is copied at most once per freeze.
//!  3. A frozen row counts as stored: the delta that it is in comes before any that deletes it.

use std::ops::Range;

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;
use millpond_core::Result;
use millpond_core::key::stable_hashes;

use super::KeyedRows;
use crate::key_index::{KeyIndex, NO_SLOT};
use crate::table::Scope;

/// Two bits of a slot's flags: one means that it is dirty, the other that it is frozen.
pub(super) const DIRTY: u8 = 0b0011;
/// The store knows the slot's key.
pub(super) const STORED: u8 = 0b0100;
/// Where everything is frozen: the slot is not to be copied any more.
pub(super) const COPIED: u8 = 0b1000;

/// Some rows, as columns.
#[derive(Debug, Clone, Default)]
pub(crate) struct Piece {
    pub(crate) columns: Vec<ArrayRef>,
    pub(crate) rows: usize,
}

/// What a freeze holds: whole rows that are new or changed, and keys of stored rows that went. A
/// key that came back is in both.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    pub(crate) upserts: Vec<Piece>,
    pub(crate) gone: Vec<Piece>,
}

impl Changes {
    /// The keys that are gone for good, if any; `types` are those of the key columns.
    pub(crate) fn deletes(&self, types: &[DataType]) -> Result<Option<Piece>> {
        if self.gone.is_empty() {
            return Ok(None);
        }
        let mut index = KeyIndex::new(types)?;
        let mut slots = Vec::new();
        for piece in &self.gone {
            index.upsert(&piece.columns, &stable_hashes(&piece.columns, piece.rows)?, &mut slots)?;
        }
        for piece in &self.upserts {
            let keys = &piece.columns[..types.len()];
            index.find(keys, &stable_hashes(keys, piece.rows)?, &mut slots)?;
            slots.iter().filter(|slot| **slot != NO_SLOT).for_each(|slot| index.remove(*slot));
        }
        let gone: Vec<u32> = (0..index.slots() as u32).filter(|slot| index.is_live(*slot)).collect();
        let piece = Piece { columns: index.keys(&gone)?, rows: gone.len() };
        Ok(Some(piece).filter(|piece| piece.rows > 0))
    }
}

/// A freeze under way.
#[derive(Debug)]
pub(super) struct Freezing {
    todo: Todo,
    done: Changes,
}

/// Which slots are still to be looked at.
#[derive(Debug)]
enum Todo {
    /// Those from `next` on that have the frozen bit.
    Listed { slots: Vec<u32>, next: usize },
    /// All of the range that are not [`COPIED`].
    All(Range<u32>),
}

impl Freezing {
    pub(super) fn bytes(&self) -> usize {
        let copied = self.done.upserts.iter().chain(&self.done.gone).flat_map(|piece| &piece.columns);
        copied.map(|column| column.get_array_memory_size()).sum()
    }

    /// How many rows were copied so far.
    #[cfg(test)]
    pub(super) fn copied_rows(&self) -> usize {
        self.done.upserts.iter().map(|piece| piece.rows).sum()
    }

    /// Whether a live slot is frozen and not yet copied.
    fn waits(&self, slot: u32, flags: u8, frozen_bit: u8) -> bool {
        match &self.todo {
            Todo::Listed { .. } => flags & frozen_bit != 0,
            Todo::All(range) => range.contains(&slot) && flags & COPIED == 0,
        }
    }

    /// The next slots to be looked at.
    fn take(&mut self, budget: &mut usize) -> Vec<u32> {
        let slots: Vec<u32> = match &mut self.todo {
            Todo::Listed { slots, next } => {
                let end = slots.len().min(next.saturating_add(*budget));
                let taken = slots[*next..end].to_vec();
                *next = end;
                taken
            }
            Todo::All(range) => {
                let end =
                    range.end.min(range.start.saturating_add(u32::try_from(*budget).unwrap_or(u32::MAX)));
                let taken = range.start..end;
                range.start = end;
                taken.collect()
            }
        };
        *budget -= slots.len();
        slots
    }

    fn is_done(&self) -> bool {
        match &self.todo {
            Todo::Listed { slots, next } => *next == slots.len(),
            Todo::All(range) => range.is_empty(),
        }
    }
}

impl KeyedRows {
    /// Fixes what the scope says, and starts a new dirty set.
    pub(crate) fn begin_freeze(&mut self, scope: Scope) {
        assert!(self.freezing.is_none(), "one frozen set at a time");
        let (dirty, gone) = (std::mem::take(&mut self.dirty_slots), std::mem::take(&mut self.gone));
        self.dirty_bit ^= DIRTY;
        self.freezing = Some(match scope {
            Scope::Changes => Freezing {
                todo: Todo::Listed { slots: dirty, next: 0 },
                done: Changes { upserts: Vec::new(), gone },
            },
            Scope::Everything => {
                Freezing { todo: Todo::All(0..self.index.slots() as u32), done: Changes::default() }
            }
        });
    }

    /// Copies frozen rows, at most as many as the budget says; answers all when there are no more.
    pub(crate) fn drain(&mut self, budget: &mut usize) -> Result<Option<Changes>> {
        let Some(freezing) = &mut self.freezing else { return Ok(None) };
        let mut slots = freezing.take(budget);
        let frozen_bit = self.dirty_bit ^ DIRTY;
        // The range to do has moved beyond these slots, so that their own flags decide.
        let all = matches!(freezing.todo, Todo::All(_));
        slots.retain(|slot| {
            let flags = &mut self.flags[*slot as usize];
            let waits = if all { *flags & COPIED == 0 } else { *flags & frozen_bit != 0 };
            *flags &= !(frozen_bit | COPIED);
            waits && self.index.is_live(*slot)
        });
        self.copy(&slots)?;
        let done = self.freezing.take_if(|freezing| freezing.is_done());
        Ok(done.map(|freezing| freezing.done))
    }

    /// Whether a freeze is under way.
    pub(crate) fn is_freezing(&self) -> bool {
        self.freezing.is_some()
    }

    /// Whether a freeze would hold anything.
    pub(crate) fn has_changes(&self) -> bool {
        !self.dirty_slots.is_empty() || !self.gone.is_empty()
    }

    /// Whether the store knows of any row, live or gone since, or will once the frozen ones are in it.
    pub(crate) fn is_stored(&self) -> bool {
        let frozen = self.freezing.as_ref();
        self.stored_rows > 0
            || !self.gone.is_empty()
            || frozen.is_some_and(|freezing| !freezing.is_done() || !freezing.done.upserts.is_empty())
    }

    /// Keys of all rows that the store knows, of live ones and of those that are gone since.
    pub(crate) fn stored_keys(&mut self) -> Result<Vec<Piece>> {
        let mut pieces = std::mem::take(&mut self.gone);
        let mut stored = self.live_slots(0, usize::MAX);
        stored.retain(|slot| self.flags[*slot as usize] & STORED != 0);
        if !stored.is_empty() {
            pieces.push(Piece { columns: self.index.keys(&stored)?, rows: stored.len() });
        }
        Ok(pieces)
    }

    /// Copies those of the live slots that are frozen, since they are about to change.
    pub(super) fn copy_before_write(&mut self, mut slots: Vec<u32>) -> Result<()> {
        let Some(freezing) = &self.freezing else { return Ok(()) };
        let frozen_bit = self.dirty_bit ^ DIRTY;
        slots.retain(|slot| freezing.waits(*slot, self.flags[*slot as usize], frozen_bit));
        slots.iter().for_each(|slot| self.forget_frozen(*slot));
        self.copy(&slots)
    }

    /// A slot is not to be copied any more: it was, or it holds another row now.
    pub(super) fn forget_frozen(&mut self, slot: u32) {
        match self.freezing.as_ref().map(|freezing| &freezing.todo) {
            Some(Todo::All(range)) if range.contains(&slot) => self.flags[slot as usize] |= COPIED,
            Some(Todo::Listed { .. }) => self.flags[slot as usize] &= !(self.dirty_bit ^ DIRTY),
            Some(Todo::All(_)) | None => {}
        }
    }

    /// Adds the whole rows at `slots` to the frozen set: the store will know them.
    fn copy(&mut self, slots: &[u32]) -> Result<()> {
        if slots.is_empty() {
            return Ok(());
        }
        self.mark_stored(slots);
        let mut columns = self.index.keys(slots)?;
        for column in &self.columns {
            columns.push(column.gather(slots)?);
        }
        if let Some(freezing) = &mut self.freezing {
            freezing.done.upserts.push(Piece { columns, rows: slots.len() });
        }
        Ok(())
    }
}
