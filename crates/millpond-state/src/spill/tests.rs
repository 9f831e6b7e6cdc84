//! A table whose rows leave memory at random holds what one holds whose rows stay, and freezes to
//! the same.

use std::collections::BTreeMap;

use arrow::array::{ArrayRef, AsArray, Int64Array};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use millpond_core::key::stable_hashes;
use millpond_core::random::Random;

use super::*;
use crate::table::{StateTable, TableKind};
use crate::value_table::ValueTable;

/// Units in memory.
#[derive(Debug, Default)]
struct FakeStore(Mutex<BTreeMap<Vec<u8>, Vec<u8>>>);

impl FakeStore {
    fn units(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, Vec<u8>>> {
        self.0.lock().unwrap()
    }
}

impl SpillStore for FakeStore {
    fn write(&self, puts: &[SpilledUnit], deletes: &[Vec<u8>]) -> Result<()> {
        let mut units = self.units();
        units.extend(puts.iter().cloned());
        deletes.iter().for_each(|key| drop(units.remove(key)));
        Ok(())
    }
    fn read(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>> {
        assert!(keys.is_sorted());
        Ok(keys.iter().map(|key| self.units().get(key).cloned()).collect())
    }
    fn scan(&self, from: &[u8], to: &[u8], max: usize) -> Result<Vec<SpilledUnit>> {
        let units = self.units();
        let range = units.range(from.to_vec()..to.to_vec()).take(max);
        Ok(range.map(|(key, rows)| (key.clone(), rows.clone())).collect())
    }
    fn clear(&self, from: &[u8], to: &[u8]) -> Result<()> {
        self.units().retain(|key, _| key.as_slice() < from || key.as_slice() >= to);
        Ok(())
    }
}

fn def() -> TableDef {
    let field = |name: &str| Field::new(name, DataType::Int64, false);
    TableDef {
        name: "groups".into(),
        kind: TableKind::Value,
        schema: Arc::new(Schema::new(vec![field("k"), field("n")])),
        identity_columns: 1,
        partition_columns: vec![0],
    }
}

/// A table with its spill, and what it should hold.
struct Model {
    table: ValueTable,
    spill: TableSpill,
    contents: BTreeMap<i64, i64>,
    /// What the deltas add up to.
    stored: BTreeMap<i64, i64>,
    /// A delta that is not read yet, and what it should add up to.
    frozen: Option<(Frozen, bool, BTreeMap<i64, i64>)>,
}

impl Model {
    fn new(store: Arc<dyn SpillStore>) -> Self {
        let spill = SpillArea::over(store).table(&def()).unwrap().unwrap();
        let table = ValueTable::new(def(), 256).unwrap();
        Self { table, spill, contents: BTreeMap::new(), stored: BTreeMap::new(), frozen: None }
    }

    /// Makes keys resident; gives them as a column with their hashes.
    fn admit(&mut self, keys: &[i64]) -> (ArrayRef, Arc<[u64]>) {
        let column: ArrayRef = Arc::new(Int64Array::from(keys.to_vec()));
        let hashes = stable_hashes(std::slice::from_ref(&column), keys.len()).unwrap();
        let mut wanted = hashes.to_vec();
        wanted.sort_unstable();
        wanted.dedup();
        let rows = self.spill.take(&wanted).unwrap();
        self.table.admit(&rows).unwrap();
        (column, hashes)
    }

    fn add(&mut self, keys: &[i64], value: i64) {
        let (column, hashes) = self.admit(keys);
        let mut slots = Vec::new();
        self.table.slots_for(&[column], &hashes, &mut slots).unwrap();
        for (key, slot) in keys.iter().zip(&slots) {
            self.table.columns_mut()[0].i64s_mut()[*slot as usize] += value;
            *self.contents.entry(*key).or_default() += value;
        }
    }

    fn remove(&mut self, key: i64) {
        let (column, hashes) = self.admit(&[key]);
        let mut slots = Vec::new();
        self.table.find(&[column], &hashes, &mut slots).unwrap();
        if self.contents.remove(&key).is_some() {
            self.table.remove(&slots).unwrap();
        }
    }

    fn evict(&mut self, random: &mut Random) {
        let mut slots = self.table.keyed_rows().live_slots(0, usize::MAX);
        slots.retain(|_| random.below(2) == 0);
        let evicted = self.table.evict(&slots).unwrap();
        self.spill.put(&evicted).unwrap();
    }

    fn freeze(&mut self, base: bool) {
        self.read();
        let scope = if base { Scope::Everything } else { Scope::Changes };
        self.table.begin_freeze(scope).unwrap();
        self.spill.begin_freeze(scope);
        let mut budget = usize::MAX;
        let resident = self.table.drain(&mut budget).unwrap().unwrap();
        let frozen = self.spill.finish_freeze(&def(), resident);
        self.frozen = Some((frozen, base, self.contents.clone()));
    }

    /// What the background thread does, some time later.
    fn read(&mut self) {
        let Some((frozen, base, expected)) = self.frozen.take() else { return };
        let delta = frozen.into_delta().unwrap();
        if base {
            self.stored.clear();
        }
        let column =
            |rows: &RecordBatch, at: usize| rows.column(at).as_primitive::<Int64Type>().values().to_vec();
        for key in column(&delta.deletes, 0) {
            self.stored.remove(&key);
        }
        let upserts = column(&delta.upserts, 0);
        let distinct: HashSet<i64> = upserts.iter().copied().collect();
        assert_eq!(distinct.len(), upserts.len(), "an identity is in a delta once");
        self.stored.extend(upserts.into_iter().zip(column(&delta.upserts, 1)));
        assert_eq!(self.stored, expected);
    }
}

#[test]
fn rows_that_come_and_go_are_frozen_once() {
    for seed in 0..60 {
        let mut random = Random::seeded(seed);
        let mut model = Model::new(Arc::new(FakeStore::default()));
        for _ in 0..200 {
            match random.below(8) {
                0 => model.remove(random.below(40) as i64),
                1 | 2 => model.evict(&mut random),
                3 => model.freeze(random.below(4) == 0),
                4 => model.read(),
                _ => {
                    let keys: Vec<i64> = (0..random.below(5)).map(|_| random.below(40) as i64).collect();
                    model.add(&keys, random.below(9) as i64 + 1);
                }
            }
            let rows = StateTable::rows(&model.table) + model.spill.rows();
            assert_eq!(rows, model.contents.len(), "seed {seed}");
        }
        model.freeze(false);
        model.read();
        model.freeze(true);
        model.read();
    }
}

#[test]
fn a_table_that_goes_leaves_nothing() {
    let store = Arc::new(FakeStore::default());
    let mut model = Model::new(store.clone());
    model.add(&[1, 2, 3], 1);
    let slots = model.table.keyed_rows().live_slots(0, usize::MAX);
    let evicted = model.table.evict(&slots).unwrap();
    model.spill.put(&evicted).unwrap();
    assert_eq!((store.units().len(), model.spill.rows()), (3, 3));
    assert!(model.spill.bytes() > 0);
    drop(model);
    assert!(store.units().is_empty());
}
