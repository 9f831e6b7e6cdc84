//! Keys that end in an integer-like column below a prefix that many of them share, such as the
//! distinct values of a group.
//!
//! The prefix is kept once; a key is its number and the value, so that a probe compares two
//! integers. Where the caller knows to which group a row belongs, the prefix is not even looked up:
//! its number is remembered per group.
//!
//! ```text
//! group ─▶ number of its prefix ┐
//!                               ├─▶ (number, value) ─▶ slot
//! value ────────────────────────┘
//! ```

use arrow::array::{Array, ArrayRef, UInt32Array};
use arrow::buffer::NullBuffer;
use arrow::compute::take;
use arrow::datatypes::DataType;
use hashbrown::HashTable;
use millpond_core::Result;
use millpond_core::key::stable_hashes;

use super::{KeyIndex, NO_SLOT, Slots, integer_values};
use crate::column::gather_integers;

/// A key: the number of its prefix, its value, and whether that is NULL.
type Key = (u32, i64, bool);

/// See the module.
#[derive(Debug)]
pub(super) struct PrefixedKeys {
    prefixes: Box<KeyIndex>,
    /// Keys per prefix; one without keys is forgotten.
    keys: Vec<u32>,
    /// How often the number of a prefix was used, by which one remembered of old is told.
    uses: Vec<u32>,
    /// Per group: the number of its prefix, and its use at that time.
    groups: Vec<(u32, u32)>,
    table: HashTable<(Key, u32)>,
    /// The key of each slot.
    slots: Vec<Key>,
}

impl PrefixedKeys {
    pub(super) fn new(prefix: &[DataType]) -> Result<Self> {
        Ok(Self {
            prefixes: Box::new(KeyIndex::new(prefix)?),
            keys: Vec::new(),
            uses: Vec::new(),
            groups: Vec::new(),
            table: HashTable::new(),
            slots: Vec::new(),
        })
    }

    pub(super) fn upsert(
        &mut self,
        slots: &mut Slots,
        columns: &[ArrayRef],
        hashes: &[u64],
        groups: Option<&[u32]>,
        found: &mut Vec<u32>,
        created: &mut Vec<u32>,
    ) -> Result<()> {
        let (value, prefix) = columns.split_last().expect("a prefixed key has a value");
        let numbers = match groups {
            Some(groups) => self.numbers_of_groups(groups, prefix)?,
            None => self.numbers(prefix, hashes.len())?,
        };
        let values = integer_values(value);
        let nulls = value.nulls().filter(|nulls| nulls.null_count() > 0);
        for (row, (number, hash)) in numbers.iter().zip(hashes).enumerate() {
            let is_null = nulls.is_some_and(|nulls| nulls.is_null(row));
            let key = (*number, if is_null { 0 } else { values[row] }, is_null);
            let slot = match self.table.find(*hash, |(known, _)| *known == key) {
                Some((_, slot)) => *slot,
                None => self.insert(slots, key, *hash, created),
            };
            found.push(slot);
        }
        Ok(())
    }

    fn insert(&mut self, slots: &mut Slots, key: Key, hash: u64, created: &mut Vec<u32>) -> u32 {
        let slot = slots.create(hash, created);
        if slot as usize == self.slots.len() {
            self.slots.push(key);
        } else {
            self.slots[slot as usize] = key;
        }
        self.keys[key.0 as usize] += 1;
        self.table.insert_unique(hash, (key, slot), |(_, slot)| slots.hashes[*slot as usize]);
        slot
    }

    /// The numbers of prefixes; unknown ones get one.
    fn numbers(&mut self, prefix: &[ArrayRef], rows: usize) -> Result<Vec<u32>> {
        let mut numbers = Vec::new();
        self.prefixes.upsert(prefix, &stable_hashes(prefix, rows)?, &mut numbers)?;
        self.keys.resize(self.prefixes.slots(), 0);
        self.uses.resize(self.prefixes.slots(), 0);
        Ok(numbers)
    }

    /// The same where the groups of the rows are known: only those not seen before are looked up.
    fn numbers_of_groups(&mut self, groups: &[u32], prefix: &[ArrayRef]) -> Result<Vec<u32>> {
        let unknown: Vec<u32> = (0..groups.len() as u32)
            .filter(|row| self.number_of_group(groups[*row as usize]).is_none())
            .collect();
        if !unknown.is_empty() {
            let rows = UInt32Array::from(unknown);
            let new = prefix.iter().map(|column| Ok(take(column, &rows, None)?));
            let numbers = self.numbers(&new.collect::<Result<Vec<_>>>()?, rows.len())?;
            for (row, number) in rows.values().iter().zip(numbers) {
                let group = groups[*row as usize] as usize;
                if group >= self.groups.len() {
                    self.groups.resize(group + 1, (NO_SLOT, 0));
                }
                self.groups[group] = (number, self.uses[number as usize]);
            }
        }
        let known = |group: &u32| self.number_of_group(*group).expect("it was looked up");
        Ok(groups.iter().map(known).collect())
    }

    #[inline]
    fn number_of_group(&self, group: u32) -> Option<u32> {
        let (number, uses) = self.groups.get(group as usize)?;
        (self.uses.get(*number as usize) == Some(uses)).then_some(*number)
    }

    /// The slot of a group means another group from now on.
    pub(super) fn forget_groups(&mut self, groups: &[u32]) {
        for group in groups {
            if let Some(known) = self.groups.get_mut(*group as usize) {
                *known = (NO_SLOT, 0);
            }
        }
    }

    pub(super) fn find(&mut self, columns: &[ArrayRef], hashes: &[u64], found: &mut Vec<u32>) -> Result<()> {
        let (value, prefix) = columns.split_last().expect("a prefixed key has a value");
        let mut numbers = Vec::new();
        self.prefixes.find(prefix, &stable_hashes(prefix, hashes.len())?, &mut numbers)?;
        let values = integer_values(value);
        found.extend(numbers.iter().zip(hashes).enumerate().map(|(row, (number, hash))| {
            let is_null = value.is_null(row);
            let key = (*number, if is_null { 0 } else { values[row] }, is_null);
            self.table.find(*hash, |(known, _)| *known == key).map_or(NO_SLOT, |(_, slot)| *slot)
        }));
        Ok(())
    }

    pub(super) fn remove(&mut self, hash: u64, slot: u32) {
        let entry = self.table.find_entry(hash, |(_, known)| *known == slot);
        let (((number, _, _), _), _) = entry.expect("a live slot is in the table").remove();
        let keys = &mut self.keys[number as usize];
        *keys -= 1;
        if *keys == 0 {
            self.prefixes.remove(number);
            self.uses[number as usize] += 1;
        }
    }

    pub(super) fn decode(&self, value: &DataType, slots: &[u32]) -> Result<Vec<ArrayRef>> {
        let keys = || slots.iter().map(|slot| self.slots[*slot as usize]);
        let numbers: Vec<u32> = keys().map(|(number, _, _)| number).collect();
        let mut columns = self.prefixes.keys(&numbers)?;
        let nulls: Option<NullBuffer> = keys().any(|(_, _, is_null)| is_null).then(|| {
            let valid = keys().map(|(_, _, is_null)| !is_null);
            valid.collect()
        });
        columns.push(gather_integers(value, keys().map(|(_, value, _)| value), nulls)?);
        Ok(columns)
    }

    pub(super) fn bytes(&self) -> usize {
        let numbers = self.keys.capacity() * 8 + self.groups.capacity() * 8;
        self.prefixes.bytes() + self.table.allocation_size() + self.slots.capacity() * 24 + numbers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use arrow::array::{Int64Array, StringArray};

    fn keys(rows: &[(&str, Option<i64>)]) -> (Vec<ArrayRef>, Arc<[u64]>) {
        let prefix: ArrayRef = Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.0)));
        let value: ArrayRef = Arc::new(Int64Array::from_iter(rows.iter().map(|row| row.1)));
        let columns = vec![prefix, value];
        let hashes = stable_hashes(&columns, rows.len()).unwrap();
        (columns, hashes)
    }

    fn upsert(index: &mut KeyIndex, rows: &[(&str, Option<i64>)], groups: Option<&[u32]>) -> Vec<u32> {
        let (columns, hashes) = keys(rows);
        let mut slots = Vec::new();
        index.upsert_in_groups(&columns, &hashes, groups, &mut slots).unwrap();
        let (decoded, expected) = (index.keys(&slots).unwrap(), columns);
        assert_eq!(decoded, expected);
        let mut found = Vec::new();
        index.find(&expected, &hashes, &mut found).unwrap();
        assert_eq!(found, slots);
        slots
    }

    #[test]
    fn groups_need_not_be_looked_up_and_agree_with_keys() {
        let mut index = KeyIndex::prefixed(&[DataType::Utf8, DataType::Int64]).unwrap();
        let rows = [("a", Some(1)), ("b", Some(1)), ("a", None), ("a", Some(1))];
        assert_eq!(upsert(&mut index, &rows, Some(&[7, 3, 7, 7])), [0, 1, 2, 0]);
        assert_eq!(upsert(&mut index, &rows, None), [0, 1, 2, 0]);
        assert_eq!(upsert(&mut index, &[("b", Some(2)), ("c", Some(2))], Some(&[3, 9])), [3, 4]);
        let (absent, hashes) = keys(&[("d", Some(1)), ("c", None)]);
        let mut found = Vec::new();
        index.find(&absent, &hashes, &mut found).unwrap();
        assert_eq!(found, [NO_SLOT, NO_SLOT]);
    }

    #[test]
    fn a_number_or_slot_that_is_used_again_is_not_mistaken() {
        let mut index = KeyIndex::prefixed(&[DataType::Utf8, DataType::Int64]).unwrap();
        assert_eq!(upsert(&mut index, &[("a", Some(1)), ("b", Some(1))], Some(&[0, 1])), [0, 1]);
        // The prefix of group 0 goes, and another prefix gets its number.
        index.remove(0);
        assert_eq!(upsert(&mut index, &[("c", Some(5))], Some(&[2])), [0]);
        assert_eq!(upsert(&mut index, &[("a", Some(1))], Some(&[0])), [2]);
        // The slot of group 1 is given to another group while a key of the first is left.
        index.forget_groups(&[1]);
        assert_eq!(upsert(&mut index, &[("e", Some(1))], Some(&[1])), [3]);
        assert_eq!(index.len(), 4);
    }
}
