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

use crate::keyed_rows::{Changes, KeyedRows, Piece};
use crate::table::{Frozen, Scope, StateTable, TableDef, TableKind};
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
    removed: Vec<(i64, Vec<Piece>)>,
    freezing: Option<FreezingWindows>,
}

/// Frozen windows on their way out.
#[derive(Debug)]
struct FreezingWindows {
    /// Ends of windows that are frozen; their rows are still to be copied.
    ends: Vec<i64>,
    /// Windows that were dropped meanwhile, but belong to the frozen set.
    dropped: Vec<(i64, KeyedRows)>,
    changes: Vec<(Option<i64>, Changes)>,
    expired_through: Option<i64>,
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
            freezing: None,
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
        if rows.is_freezing()
            && let Some(freezing) = &mut self.freezing
        {
            let changes = rows.drain(&mut { usize::MAX })?;
            freezing.changes.extend(changes.map(|changes| (Some(end), changes)));
        }
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
            if rows.is_freezing()
                && let Some(freezing) = &mut self.freezing
            {
                freezing.dropped.push((window, rows));
            }
        }
        self.dropped_through = self.dropped_through.max(end);
    }
}

impl StateTable for WindowTable {
    fn def(&self) -> &TableDef {
        &self.def
    }

    fn begin_freeze(&mut self, scope: Scope) -> Result<()> {
        assert!(self.freezing.is_none(), "one frozen set at a time");
        let (removed, expired_through) = (std::mem::take(&mut self.removed), self.expired_through.take());
        let mut freezing =
            FreezingWindows { ends: Vec::new(), dropped: Vec::new(), changes: Vec::new(), expired_through };
        match scope {
            Scope::Changes => freezing.changes.extend(
                removed.into_iter().map(|(end, gone)| (Some(end), Changes { gone, ..Changes::default() })),
            ),
            Scope::Everything => freezing.expired_through = None,
        }
        for (end, rows) in &mut self.windows {
            if scope == Scope::Everything || rows.has_changes() {
                rows.begin_freeze(scope);
                freezing.ends.push(*end);
            }
        }
        self.freezing = Some(freezing);
        Ok(())
    }

    fn drain(&mut self, budget: &mut usize) -> Result<Option<Frozen>> {
        let Some(freezing) = &mut self.freezing else {
            return Err(Error::internal(format!("state table {:?} is not frozen", self.def.name)));
        };
        while let Some((end, rows)) = freezing.dropped.last_mut() {
            let Some(changes) = rows.drain(budget)? else { return Ok(None) };
            freezing.changes.push((Some(*end), changes));
            freezing.dropped.pop();
        }
        while let Some(end) = freezing.ends.last() {
            if let Some(rows) = self.windows.get_mut(end).filter(|rows| rows.is_freezing()) {
                let Some(changes) = rows.drain(budget)? else { return Ok(None) };
                freezing.changes.push((Some(*end), changes));
            }
            freezing.ends.pop();
        }
        let done = self.freezing.take();
        Ok(done.map(|done| frozen(&self.def, done.changes, done.expired_through)))
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
        let dropped = self.freezing.iter().flat_map(|freezing| &freezing.dropped).map(|(_, rows)| rows);
        self.windows.values().chain(dropped).map(KeyedRows::bytes).sum()
    }

    fn used_bytes(&self) -> usize {
        self.windows.values().map(KeyedRows::used_bytes).sum()
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

    fn sorted(batch: &RecordBatch) -> Vec<(i64, i64)> {
        let column = |i: usize| batch.column(i).as_primitive::<Int64Type>().values().to_vec();
        let mut rows: Vec<_> = column(0).into_iter().zip(column(1)).collect();
        rows.sort_unstable();
        rows
    }

    #[test]
    fn windows_that_go_while_they_are_drained_are_in_the_frozen_set_and_deleted_by_the_next() {
        let mut table = table();
        add(&mut table, 10, &[1, 2, 3]);
        add(&mut table, 20, &[4, 5]);
        add(&mut table, 30, &[6]);
        table.begin_freeze(Scope::Changes).unwrap();
        assert!(table.drain(&mut 2).unwrap().is_none());
        table.drop_through(10);
        add(&mut table, 20, &[4, 7]);
        assert_eq!(table.remove(20).unwrap().unwrap().len(), 3);
        let mut frozen = None;
        while frozen.is_none() {
            frozen = table.drain(&mut 1).unwrap();
        }
        let delta = frozen.unwrap().into_delta().unwrap();
        assert_eq!(sorted(&delta.upserts), [(10, 1), (10, 2), (10, 3), (20, 4), (20, 5), (30, 6)]);
        assert!(delta.upserts.column(2).as_primitive::<Int64Type>().values().iter().all(|n| *n == 1));
        assert_eq!((delta.deletes.num_rows(), delta.expired_through), (0, None));
        let next = table.freeze().unwrap().into_delta().unwrap();
        assert_eq!(sorted(&next.deletes), [(20, 4), (20, 5)]);
        assert_eq!((next.upserts.num_rows(), next.expired_through), (0, Some(10)));
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
