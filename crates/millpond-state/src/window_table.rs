//! The window table: (window end, key) → one row; whole windows are dropped at once.
//!
//! One set of keyed rows per window end, so that dropping a window frees its memory without
//! looking at its rows. A delta records only "everything at or below this end is gone", and
//! windows that die between two freezes never appear in one.

use std::collections::BTreeMap;

use arrow::array::{ArrayRef, AsArray, RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use arrow::datatypes::{DataType, Int64Type};
use millpond_core::{Error, KeyGroupRange, Result};

use crate::keyed_rows::{Changes, KeyedRows};
use crate::table::{Frozen, StateTable, TableDef, TableKind};
use crate::value_table::{frozen, owned_rows, rows_of};

/// A table of kind [`TableKind::Window`]. Column 0 of its schema is the window end.
#[derive(Debug)]
pub struct WindowTable {
    def: TableDef,
    max_parallelism: u16,
    windows: BTreeMap<i64, KeyedRows>,
    /// Stored windows up to here were dropped since the last freeze.
    expired_through: Option<i64>,
    /// Windows up to here were dropped at any time: none of them may come back.
    dropped_through: i64,
    /// Keys of stored rows of windows that were removed since the last freeze.
    removed: Vec<(i64, Vec<ArrayRef>)>,
}

impl WindowTable {
    /// An empty table.
    ///
    /// Errors: *Invalid* for a type that cannot be a key; *Internal* for a definition of another
    /// kind or without a window end as column 0.
    pub fn new(def: TableDef, max_parallelism: u16) -> Result<Self> {
        if def.kind != TableKind::Window || def.schema.field(0).data_type() != &DataType::Int64 {
            return Err(Error::internal(format!("state table {:?} is not a window table", def.name)));
        }
        rows_of(&def, 1)?;
        Ok(Self {
            def,
            max_parallelism,
            windows: BTreeMap::new(),
            expired_through: None,
            dropped_through: i64::MIN,
            removed: Vec::new(),
        })
    }

    /// The rows of a window, to be changed; a new window is empty.
    ///
    /// Errors: *Internal* if the window was dropped before.
    pub fn window_mut(&mut self, end: i64) -> Result<&mut KeyedRows> {
        if end <= self.dropped_through {
            return Err(Error::internal(format!(
                "window {end} of state table {:?} was dropped",
                self.def.name
            )));
        }
        match self.windows.entry(end) {
            std::collections::btree_map::Entry::Occupied(entry) => Ok(entry.into_mut()),
            std::collections::btree_map::Entry::Vacant(entry) => Ok(entry.insert(rows_of(&self.def, 1)?)),
        }
    }

    /// No rows, of the shape that one window has.
    pub fn empty(&self) -> Result<KeyedRows> {
        rows_of(&self.def, 1)
    }

    /// The rows of a window, if it has any.
    pub fn window(&self, end: i64) -> Option<&KeyedRows> {
        self.windows.get(&end)
    }

    /// The smallest window end that has rows.
    pub fn first_end(&self) -> Option<i64> {
        self.windows.keys().next().copied()
    }

    /// Windows whose end lies in `(after, through]`, ascending; none if `through` is not above `after`.
    pub fn range(&self, after: i64, through: i64) -> impl Iterator<Item = (i64, &KeyedRows)> {
        let bounds = (std::ops::Bound::Excluded(after), std::ops::Bound::Included(through));
        let windows = (after < through).then(|| self.windows.range(bounds));
        windows.into_iter().flatten().map(|(end, rows)| (*end, rows))
    }

    /// Takes one window out; it must not come back before the next freeze.
    pub fn remove(&mut self, end: i64) -> Result<Option<KeyedRows>> {
        let Some(mut rows) = self.windows.remove(&end) else { return Ok(None) };
        if rows.is_stored() {
            self.removed.push((end, rows.stored_keys()?));
        }
        Ok(Some(rows))
    }

    /// Drops every window whose end is at or below `end`.
    pub fn drop_through(&mut self, end: i64) {
        while let Some(entry) = self.windows.first_entry().filter(|entry| *entry.key() <= end) {
            let (window, rows) = entry.remove_entry();
            if rows.is_stored() {
                self.expired_through = self.expired_through.max(Some(window));
            }
        }
        self.dropped_through = self.dropped_through.max(end);
    }
}

impl StateTable for WindowTable {
    fn def(&self) -> &TableDef {
        &self.def
    }

    fn freeze(&mut self) -> Result<Frozen> {
        let mut changes = Vec::new();
        for (end, rows) in &mut self.windows {
            let change = rows.take_changes()?;
            if change.upsert_rows + change.delete_rows > 0 {
                changes.push((Some(*end), change));
            }
        }
        for (end, deletes) in std::mem::take(&mut self.removed) {
            let delete_rows = deletes.first().map_or(0, |column| column.len());
            changes.push((Some(end), Changes { deletes, delete_rows, ..Changes::default() }));
        }
        frozen(&self.def, changes, self.expired_through.take())
    }

    fn freeze_all(&mut self) -> Result<Frozen> {
        let mut changes = Vec::new();
        for (end, rows) in &mut self.windows {
            changes.push((Some(*end), rows.take_all()?));
        }
        self.expired_through = None;
        self.removed.clear();
        frozen(&self.def, changes, None)
    }

    fn load(&mut self, rows: &RecordBatch, range: KeyGroupRange) -> Result<()> {
        let rows = owned_rows(&self.def, rows, range, self.max_parallelism)?;
        let ends = rows.column(0).as_primitive_opt::<Int64Type>();
        let ends = ends.ok_or_else(|| Error::corrupt("the window end of a state table is not BIGINT"))?;
        let mut by_end: BTreeMap<i64, Vec<u32>> = BTreeMap::new();
        for (row, end) in ends.values().iter().enumerate() {
            by_end.entry(*end).or_default().push(row as u32);
        }
        for (end, indices) in by_end {
            let part = take_record_batch(&rows, &UInt32Array::from(indices))?;
            let (identity, values) = part.columns().split_at(self.def.identity_columns);
            let keys: &[ArrayRef] = &identity[1..];
            self.window_mut(end)?.load(keys, values, part.num_rows())?;
        }
        Ok(())
    }

    fn rows(&self) -> usize {
        self.windows.values().map(KeyedRows::len).sum()
    }

    fn bytes(&self) -> usize {
        self.windows.values().map(KeyedRows::bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use arrow::array::Int64Array;
    use arrow::datatypes::{Field, Schema};
    use millpond_core::key::stable_hashes;

    fn table() -> WindowTable {
        let field = |name: &str| Field::new(name, DataType::Int64, false);
        let def = TableDef {
            name: "panes".into(),
            kind: TableKind::Window,
            schema: Arc::new(Schema::new(vec![field("window_end"), field("k"), field("n")])),
            identity_columns: 2,
            partition_columns: vec![1],
        };
        WindowTable::new(def, 256).unwrap()
    }

    fn add(table: &mut WindowTable, end: i64, keys: &[i64]) {
        let keys: ArrayRef = Arc::new(Int64Array::from(keys.to_vec()));
        let hashes = stable_hashes(std::slice::from_ref(&keys), keys.len()).unwrap();
        let mut slots = Vec::new();
        let rows = table.window_mut(end).unwrap();
        rows.slots_for(&[keys], &hashes, &mut slots).unwrap();
        let counts = rows.columns_mut()[0].i64s_mut();
        slots.iter().for_each(|slot| counts[*slot as usize] += 1);
    }

    fn delta(table: &mut WindowTable) -> (Vec<[i64; 3]>, Option<i64>) {
        let delta = table.freeze().unwrap().into_delta().unwrap();
        assert_eq!(delta.deletes.num_rows(), 0);
        let value = |row: usize, i: usize| delta.upserts.column(i).as_primitive::<Int64Type>().value(row);
        let rows = (0..delta.upserts.num_rows()).map(|row| [value(row, 0), value(row, 1), value(row, 2)]);
        (rows.collect(), delta.expired_through)
    }

    #[test]
    fn a_window_that_dies_between_two_freezes_is_never_written() {
        let mut table = table();
        add(&mut table, 10, &[1, 2]);
        add(&mut table, 20, &[1, 1]);
        table.drop_through(10);
        assert_eq!(delta(&mut table), (vec![[20, 1, 2]], None));
        add(&mut table, 30, &[5]);
        table.drop_through(20);
        assert_eq!(delta(&mut table), (vec![[30, 5, 1]], Some(20)));
        assert_eq!(delta(&mut table), (vec![], None));
        assert!(table.window_mut(20).is_err());
    }

    #[test]
    fn a_window_that_is_taken_out_is_deleted_row_by_row_if_the_store_knows_it() {
        let mut table = table();
        add(&mut table, 10, &[1, 2]);
        add(&mut table, 20, &[3]);
        table.freeze().unwrap();
        add(&mut table, 10, &[4]);
        add(&mut table, 30, &[5]);
        assert_eq!(table.remove(10).unwrap().unwrap().len(), 3);
        assert_eq!(table.remove(30).unwrap().unwrap().len(), 1);
        assert!(table.remove(40).unwrap().is_none());
        let delta = table.freeze().unwrap().into_delta().unwrap();
        let column = |i: usize| delta.deletes.column(i).as_primitive::<Int64Type>().values().to_vec();
        assert_eq!((column(0), column(1)), (vec![10, 10], vec![1, 2]));
        assert_eq!((delta.upserts.num_rows(), StateTable::rows(&table)), (0, 1));
    }

    #[test]
    fn loaded_windows_are_clean_and_expire() {
        let mut source = table();
        add(&mut source, 10, &[1, 2]);
        add(&mut source, 20, &[1]);
        let rows = source.freeze_all().unwrap().into_delta().unwrap().upserts;
        let mut table = table();
        table.load(&rows, KeyGroupRange::all(256)).unwrap();
        assert_eq!((StateTable::rows(&table), table.first_end()), (3, Some(10)));
        assert_eq!(delta(&mut table), (vec![], None));
        table.drop_through(15);
        assert_eq!(delta(&mut table), (vec![], Some(10)));
    }
}
