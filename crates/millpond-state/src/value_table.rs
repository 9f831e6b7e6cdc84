//! The value table: key → one row of typed columns, in memory, dirty-tracked.
//!
//! A freeze swaps the set of dirty rows; draining it gathers them into a delta, nothing of the
//! others.

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, Schema, SchemaRef};
use millpond_core::key::{key_group, stable_hashes};
use millpond_core::{Error, KeyGroupRange, Result};

use crate::column::StateColumn;
use crate::keyed_rows::{Changes, KeyedRows, Piece};
use crate::spill::Evicted;
use crate::table::{Delta, Frozen, Scope, StateTable, TableDef, TableKind};

/// A table of kind [`TableKind::Value`].
#[derive(Debug)]
pub struct ValueTable {
    def: TableDef,
    max_parallelism: u16,
    rows: KeyedRows,
}

impl ValueTable {
    /// An empty table.
    ///
    /// Errors: *Invalid* for a type that cannot be a key; *Internal* for a definition of another kind.
    pub fn new(def: TableDef, max_parallelism: u16) -> Result<Self> {
        if def.kind != TableKind::Value {
            return Err(Error::internal(format!("state table {:?} is not a value table", def.name)));
        }
        let rows = rows_of(&def, 0)?;
        Ok(Self { def, max_parallelism, rows })
    }

    /// The slot of each row's key, in `slots`, to be changed; unknown keys get a row of defaults.
    pub fn slots_for(&mut self, keys: &[ArrayRef], hashes: &[u64], slots: &mut Vec<u32>) -> Result<()> {
        self.rows.slots_for(keys, hashes, slots)
    }

    /// The slot of each row's key, in `slots`; [`crate::NO_SLOT`] where there is none.
    pub fn find(&mut self, keys: &[ArrayRef], hashes: &[u64], slots: &mut Vec<u32>) -> Result<()> {
        self.rows.find(keys, hashes, slots)?;
        self.rows.use_slots(slots);
        Ok(())
    }

    /// The value columns.
    pub fn columns(&self) -> &[StateColumn] {
        self.rows.columns()
    }

    /// The value columns, to be changed at slots that are dirty.
    pub fn columns_mut(&mut self) -> &mut [StateColumn] {
        self.rows.columns_mut()
    }

    /// Says that these rows are going to change.
    pub fn mark_dirty(&mut self, slots: &[u32]) -> Result<()> {
        self.rows.mark_dirty(slots)
    }

    /// Removes rows; each slot must hold one.
    pub fn remove(&mut self, slots: &[u32]) -> Result<()> {
        self.rows.remove(slots)
    }

    /// The keys at `slots`, as columns.
    pub fn keys(&self, slots: &[u32]) -> Result<Vec<ArrayRef>> {
        self.rows.keys(slots)
    }

    /// Takes rows out of memory.
    pub fn evict(&mut self, slots: &[u32]) -> Result<Evicted> {
        let (columns, dirty, stored) = self.rows.evict(slots)?;
        let partition: Vec<ArrayRef> =
            self.def.partition_columns.iter().map(|column| columns[*column].clone()).collect();
        let hashes = stable_hashes(&partition, slots.len())?.to_vec();
        let options = RecordBatchOptions::new().with_row_count(Some(slots.len()));
        let rows = RecordBatch::try_new_with_options(self.def.schema.clone(), columns, &options)?;
        Ok(Evicted { rows, hashes, dirty, stored })
    }

    /// Takes rows back into memory; gives their slots.
    pub fn admit(&mut self, evicted: &Evicted) -> Result<Vec<u32>> {
        let (keys, values) = evicted.rows.columns().split_at(self.def.identity_columns);
        self.rows.admit(keys, values, &evicted.dirty, &evicted.stored)
    }

    /// The keyed rows themselves, to be read.
    pub fn keyed_rows(&self) -> &KeyedRows {
        &self.rows
    }

    /// The keyed rows themselves.
    pub fn keyed_rows_mut(&mut self) -> &mut KeyedRows {
        &mut self.rows
    }
}

impl StateTable for ValueTable {
    fn def(&self) -> &TableDef {
        &self.def
    }

    fn begin_freeze(&mut self, scope: Scope) -> Result<()> {
        self.rows.begin_freeze(scope);
        Ok(())
    }

    fn drain(&mut self, budget: &mut usize) -> Result<Option<Frozen>> {
        let changes = self.rows.drain(budget)?;
        Ok(changes.map(|changes| frozen(&self.def, vec![(None, changes)], None)))
    }

    fn load(&mut self, rows: &RecordBatch, range: KeyGroupRange) -> Result<()> {
        let rows = owned_rows(&self.def, rows, range, self.max_parallelism)?;
        let (keys, values) = rows.columns().split_at(self.def.identity_columns);
        self.rows.load(keys, values, rows.num_rows())
    }

    fn rows(&self) -> usize {
        self.rows.len()
    }

    fn bytes(&self) -> usize {
        self.rows.bytes()
    }

    fn used_bytes(&self) -> usize {
        self.rows.used_bytes()
    }
}

/// Empty rows for a definition whose first `skip` identity columns are kept elsewhere.
pub(crate) fn rows_of(def: &TableDef, skip: usize) -> Result<KeyedRows> {
    let fields = def.schema.fields();
    let keys: Vec<DataType> =
        fields[skip..def.identity_columns].iter().map(|field| field.data_type().clone()).collect();
    let values = &fields[def.identity_columns..];
    match def.identity_columns - skip > def.partition_columns.len() {
        // Many rows share the partition key.
        true => KeyedRows::prefixed(&keys, values),
        false => KeyedRows::new(&keys, values),
    }
}

/// The delta of some groups of changes, each with the leading column that it lacks.
pub(crate) fn frozen(
    def: &TableDef,
    changes: Vec<(Option<i64>, Changes)>,
    expired_through: Option<i64>,
) -> Frozen {
    let schema = def.schema.clone();
    let identity: SchemaRef =
        std::sync::Arc::new(Schema::new(schema.fields()[..def.identity_columns].to_vec()));
    Frozen::new(move || {
        let mut upserts = Vec::new();
        let mut deletes = Vec::new();
        for (window, changes) in changes {
            let skip = usize::from(window.is_some());
            let keys = identity.fields()[skip..].iter().map(|field| field.data_type().clone());
            if let Some(gone) = changes.deletes(&keys.collect::<Vec<_>>())? {
                deletes.push(with_window(&identity, window, gone)?);
            }
            for piece in changes.upserts {
                upserts.push(with_window(&schema, window, piece)?);
            }
        }
        Ok(Delta {
            upserts: arrow::compute::concat_batches(&schema, &upserts)?,
            deletes: arrow::compute::concat_batches(&identity, &deletes)?,
            expired_through,
        })
    })
}

fn with_window(schema: &SchemaRef, window: Option<i64>, piece: Piece) -> Result<RecordBatch> {
    let Piece { mut columns, rows } = piece;
    if let Some(window) = window {
        columns.insert(0, std::sync::Arc::new(arrow::array::Int64Array::from_value(window, rows)));
    }
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(schema.clone(), columns, &options)
        .map_err(|error| Error::internal(format!("state rows do not fit their schema: {error}")))
}

/// The rows of a snapshot that a task owns.
///
/// Errors: *Corrupt* when the columns are not the table's.
pub(crate) fn owned_rows(
    def: &TableDef,
    rows: &RecordBatch,
    range: KeyGroupRange,
    max_parallelism: u16,
) -> Result<RecordBatch> {
    if rows.num_columns() != def.schema.fields().len() {
        return Err(Error::corrupt(format!(
            "state table {:?} has {} columns in the snapshot and {} in the plan",
            def.name,
            rows.num_columns(),
            def.schema.fields().len()
        )));
    }
    if range == KeyGroupRange::all(max_parallelism) {
        return Ok(rows.clone());
    }
    let partition: Vec<ArrayRef> =
        def.partition_columns.iter().map(|column| rows.column(*column).clone()).collect();
    let hashes = stable_hashes(&partition, rows.num_rows())?;
    let owned: BooleanArray =
        hashes.iter().map(|hash| Some(range.contains(key_group(*hash, max_parallelism)))).collect();
    Ok(filter_record_batch(rows, &owned)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use arrow::array::{AsArray, Int64Array};
    use arrow::datatypes::{Field, Int64Type};

    const ALL: KeyGroupRange = KeyGroupRange { start: 0, end: 256 };

    fn table() -> ValueTable {
        let schema = Schema::new(vec![
            Field::new("k", DataType::Int64, true),
            Field::new("n", DataType::Int64, false),
        ]);
        let def = TableDef {
            name: "groups".into(),
            kind: TableKind::Value,
            schema: Arc::new(schema),
            identity_columns: 1,
            partition_columns: vec![0],
        };
        ValueTable::new(def, 256).unwrap()
    }

    fn add(table: &mut ValueTable, keys: &[i64]) -> Vec<u32> {
        let keys: ArrayRef = Arc::new(Int64Array::from(keys.to_vec()));
        let hashes = stable_hashes(std::slice::from_ref(&keys), keys.len()).unwrap();
        let mut slots = Vec::new();
        table.slots_for(&[keys], &hashes, &mut slots).unwrap();
        let counts = table.columns_mut()[0].i64s_mut();
        slots.iter().for_each(|slot| counts[*slot as usize] += 1);
        slots
    }

    fn delta(table: &mut ValueTable) -> (Vec<(i64, i64)>, Vec<i64>) {
        let delta = table.freeze().unwrap().into_delta().unwrap();
        let column =
            |batch: &RecordBatch, i: usize| batch.column(i).as_primitive::<Int64Type>().values().to_vec();
        let upserts = column(&delta.upserts, 0).into_iter().zip(column(&delta.upserts, 1)).collect();
        (upserts, column(&delta.deletes, 0))
    }

    #[test]
    fn a_delta_holds_what_changed_since_the_last_freeze() {
        let mut table = table();
        add(&mut table, &[1, 2, 1]);
        assert_eq!(delta(&mut table), (vec![(1, 2), (2, 1)], vec![]));
        assert_eq!(delta(&mut table), (vec![], vec![]));
        let slots = add(&mut table, &[2, 3]);
        table.remove(&slots).unwrap();
        assert_eq!(delta(&mut table), (vec![], vec![2]), "3 came and went between two freezes");
        let slots = add(&mut table, &[1]);
        table.remove(&slots).unwrap();
        add(&mut table, &[1]);
        assert_eq!(delta(&mut table), (vec![(1, 1)], vec![]), "1 went and came back");
    }

    #[test]
    fn load_takes_the_rows_of_the_own_key_groups_and_leaves_them_clean() {
        let mut source = table();
        add(&mut source, &(0..100).collect::<Vec<_>>());
        let everything = source.freeze_all().unwrap().into_delta().unwrap().upserts;
        let mut total = 0;
        for task in 0..3 {
            let mut part = table();
            part.load(&everything, KeyGroupRange::of_task(task, 3, 256)).unwrap();
            total += StateTable::rows(&part);
            assert_eq!(delta(&mut part), (vec![], vec![]));
        }
        assert_eq!(total, 100);
        let mut whole = table();
        whole.load(&everything, ALL).unwrap();
        let slots = add(&mut whole, &[42]);
        assert_eq!(delta(&mut whole), (vec![(42, 2)], vec![]));
        whole.remove(&slots).unwrap();
        assert_eq!(delta(&mut whole), (vec![], vec![42]));
    }
}
