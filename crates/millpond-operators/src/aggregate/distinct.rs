//! DISTINCT: a state table (group key, x) → number of rows, whose transitions between none and
//! some are what the aggregate sees.

use arrow::array::{ArrayRef, UInt32Array};
use arrow::compute::{take, take_arrays};
use millpond_core::Result;
use millpond_core::key::stable_hashes;
use millpond_state::KeyedRows;

use super::fold::Fold;
use super::set::EvaluatedInput;

/// Values that appeared in their group (+1) or went from it (−1).
#[derive(Debug)]
pub struct DistinctChanges {
    /// The group's slot, per change.
    pub slots: Vec<u32>,
    /// +1 or −1, per change.
    pub signs: Option<Vec<i64>>,
    /// The value, per change.
    pub values: ArrayRef,
}

impl DistinctChanges {
    /// Counts the rows of a batch in `seen`, whose keys are the group's and the value, and whose
    /// one column is the number of rows. `keys` and `slots` are the groups of the rows.
    pub fn of(
        seen: &mut KeyedRows,
        keys: &[ArrayRef],
        fold: Fold<'_>,
        input: &EvaluatedInput,
    ) -> Result<DistinctChanges> {
        let values = input.values.as_ref().expect("DISTINCT has an argument");
        let rows = kept_rows(fold);
        let mut identity = take_arrays(keys, &rows, None)?;
        identity.push(take(values, &rows, None)?);
        let hashes = stable_hashes(&identity, rows.len())?;
        let mut found = Vec::new();
        seen.slots_for(&identity, &hashes, &mut found)?;
        let mut changes = (Vec::new(), Vec::new(), Vec::new());
        let counts = seen.columns_mut()[0].i64s_mut();
        for (row, slot) in rows.values().iter().zip(&found) {
            let sign = fold.signs.map_or(1, |signs| signs[*row as usize]);
            let before = counts[*slot as usize];
            counts[*slot as usize] = before + sign;
            if (before > 0) != (before + sign > 0) {
                changes.0.push(fold.slots[*row as usize]);
                changes.1.push(sign);
                changes.2.push(*row);
            }
        }
        remove_absent(seen, found)?;
        let values = take(values, &UInt32Array::from(changes.2), None)?;
        Ok(DistinctChanges { slots: changes.0, signs: fold.signs.map(|_| changes.1), values })
    }

    /// The fold of the changes.
    pub fn fold(&self) -> Fold<'_> {
        Fold { slots: &self.slots, signs: self.signs.as_deref(), keep: None }
    }
}

fn kept_rows(fold: Fold<'_>) -> UInt32Array {
    match fold.keep {
        None => UInt32Array::from_iter_values(0..fold.slots.len() as u32),
        Some(keep) => UInt32Array::from_iter_values(keep.set_indices().map(|row| row as u32)),
    }
}

fn remove_absent(seen: &mut KeyedRows, mut slots: Vec<u32>) -> Result<()> {
    let counts = seen.columns()[0].i64s();
    slots.retain(|slot| counts[*slot as usize] == 0);
    slots.sort_unstable();
    slots.dedup();
    seen.remove(&slots)
}
