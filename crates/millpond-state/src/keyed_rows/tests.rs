//! Frozen sets, however they are drained, hold the rows as they were at the freeze.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{AsArray, Int64Array, StringArray};
use arrow::datatypes::{Field, Int64Type};

use super::*;
use crate::table::Scope;

/// A small generator of numbers: the same sequence for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Keyed rows beside what they should hold, and what the store should hold after each delta.
struct Model {
    rows: KeyedRows,
    text_keys: bool,
    live: BTreeMap<i64, i64>,
    stored: BTreeMap<i64, i64>,
    /// What the store should hold once the freeze under way is drained.
    expected: BTreeMap<i64, i64>,
}

impl Model {
    fn new(text_keys: bool) -> Self {
        let key = if text_keys { DataType::Utf8 } else { DataType::Int64 };
        let value = Arc::new(Field::new("n", DataType::Int64, false));
        let rows = KeyedRows::new(&[key], &[value]).unwrap();
        let empty = BTreeMap::new;
        Self { rows, text_keys, live: empty(), stored: empty(), expected: empty() }
    }

    fn keys(&self, keys: &[i64]) -> ArrayRef {
        match self.text_keys {
            true => Arc::new(StringArray::from_iter_values(keys.iter().map(|key| format!("k{key}")))),
            false => Arc::new(Int64Array::from(keys.to_vec())),
        }
    }

    fn key_numbers(&self, column: &ArrayRef) -> Vec<i64> {
        match self.text_keys {
            true => column.as_string::<i32>().iter().map(|key| key.unwrap()[1..].parse().unwrap()).collect(),
            false => column.as_primitive::<Int64Type>().values().to_vec(),
        }
    }

    fn add(&mut self, keys: &[i64]) {
        let column = self.keys(keys);
        let hashes = stable_hashes(std::slice::from_ref(&column), keys.len()).unwrap();
        let mut slots = Vec::new();
        self.rows.slots_for(&[column], &hashes, &mut slots).unwrap();
        let counts = self.rows.columns_mut()[0].i64s_mut();
        slots.iter().for_each(|slot| counts[*slot as usize] += 1);
        keys.iter().for_each(|key| *self.live.entry(*key).or_default() += 1);
    }

    fn remove(&mut self, keys: &BTreeSet<i64>) {
        let keys: Vec<i64> = keys.iter().copied().filter(|key| self.live.remove(key).is_some()).collect();
        let column = self.keys(&keys);
        let hashes = stable_hashes(std::slice::from_ref(&column), keys.len()).unwrap();
        let mut slots = Vec::new();
        self.rows.find(&[column], &hashes, &mut slots).unwrap();
        self.rows.remove(&slots).unwrap();
    }

    fn begin(&mut self, scope: Scope) {
        self.rows.begin_freeze(scope);
        self.expected = self.live.clone();
        if scope == Scope::Everything {
            self.stored.clear();
        }
    }

    /// Drains a little; whether the freeze is over.
    fn drain(&mut self, rows: usize) -> bool {
        let Some(changes) = self.rows.drain(&mut { rows }).unwrap() else { return false };
        let types = [if self.text_keys { DataType::Utf8 } else { DataType::Int64 }];
        if let Some(deletes) = changes.deletes(&types).unwrap() {
            for key in self.key_numbers(&deletes.columns[0]) {
                assert!(self.stored.remove(&key).is_some(), "{key} is deleted and was never stored");
            }
        }
        let mut seen = BTreeSet::new();
        for piece in &changes.upserts {
            let values = piece.columns[1].as_primitive::<Int64Type>().values();
            for (key, value) in self.key_numbers(&piece.columns[0]).into_iter().zip(values) {
                assert!(seen.insert(key), "{key} is in the delta twice");
                self.stored.insert(key, *value);
            }
        }
        assert_eq!(self.stored, self.expected);
        true
    }
}

#[test]
fn a_frozen_set_shows_the_rows_as_they_were_at_the_freeze() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let mut model = Model::new(seed % 2 == 1);
        let keys = 1 + random.below(40);
        for _ in 0..300 {
            let some: Vec<i64> = (0..random.below(12)).map(|_| random.below(keys) as i64).collect();
            match random.below(8) {
                0..3 => model.add(&some),
                3 | 4 => model.remove(&some.into_iter().collect()),
                5 if !model.rows.is_freezing() => {
                    model.begin(if random.below(4) == 0 { Scope::Everything } else { Scope::Changes });
                }
                _ if model.rows.is_freezing() => {
                    model.drain(random.below(6) as usize);
                }
                _ => {}
            }
            assert_eq!(model.rows.len(), model.live.len());
        }
        while model.rows.is_freezing() && !model.drain(3) {}
        model.begin(Scope::Changes);
        assert!(model.drain(usize::MAX));
    }
}

#[test]
fn a_freeze_copies_nothing_and_a_write_copies_what_it_meets() {
    let mut model = Model::new(false);
    model.add(&(0..100).collect::<Vec<_>>());
    model.begin(Scope::Changes);
    assert!(!model.drain(10));
    model.add(&[5, 50, 51, 50]);
    let freezing = model.rows.freezing.as_ref().unwrap();
    assert_eq!(freezing.copied_rows(), 12, "10 in turn and 50 and 51 before they changed");
    assert!(!model.drain(88));
    assert!(model.drain(2));
    assert_eq!(model.stored[&50], 1);
    model.begin(Scope::Changes);
    assert!(model.drain(3));
    assert_eq!(model.stored[&50], 3);
}
