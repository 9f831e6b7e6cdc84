//! Groups: keyed aggregate states by the end of a pane or window.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::physical_plan::PhysicalExpr;
use millpond_core::Result;
use millpond_core::key::stable_hashes;
use millpond_state::{KeyedRows, StateTable, TableKind, WindowTable};

use crate::aggregate::{AggregateSet, DistinctChanges, EvaluatedInput, Fold, evaluate, state_table};
use crate::operator::BuildContext;

/// Groups by (pane or window end, key), with the distinct values of their DISTINCT aggregates.
pub(super) struct Groups {
    pub(super) rows: WindowTable,
    distinct: Vec<WindowTable>,
    slots: Vec<u32>,
}

/// The groups of one end.
pub(super) struct Part<'a> {
    rows: &'a KeyedRows,
    distinct: Vec<Option<&'a KeyedRows>>,
}

impl Groups {
    pub(super) fn new(
        name: &str,
        keys: &[FieldRef],
        set: &AggregateSet,
        context: BuildContext,
    ) -> Result<Self> {
        let table = |name: &str, more: &[FieldRef], values: &[FieldRef]| {
            WindowTable::new(
                state_table(name, TableKind::Window, keys, more, values),
                context.max_parallelism,
            )
        };
        let rows = [Arc::new(Field::new("rows", DataType::Int64, false))];
        let distinct = set.distinct_fields().into_iter().enumerate();
        let distinct = distinct.map(|(i, value)| table(&format!("{name}_distinct_{i}"), &[value], &rows));
        Ok(Self {
            rows: table(name, &[], set.state_fields())?,
            distinct: distinct.collect::<Result<_>>()?,
            slots: Vec::new(),
        })
    }

    /// Folds rows into the groups of one end.
    pub(super) fn add(
        &mut self,
        end: i64,
        set: &AggregateSet,
        keys: &[(Arc<dyn PhysicalExpr>, String)],
        rows: &RecordBatch,
    ) -> Result<()> {
        let keys: Vec<ArrayRef> = keys.iter().map(|(key, _)| evaluate(key, rows)).collect::<Result<_>>()?;
        let hashes = stable_hashes(&keys, rows.num_rows())?;
        let inputs = set.evaluate(rows)?;
        let groups = self.rows.window_mut(end)?;
        groups.slots_for(&keys, &hashes, &mut self.slots)?;
        let mut seen = Vec::with_capacity(self.distinct.len());
        for table in &mut self.distinct {
            seen.push(table.window_mut(end)?);
        }
        let fold = Fold { slots: &self.slots, signs: None, keep: None };
        set.update(groups.columns_mut(), &mut seen, &keys, fold, &inputs)
    }

    /// Adds other groups to those of one end.
    pub(super) fn merge(&mut self, end: i64, set: &AggregateSet, part: &Part<'_>) -> Result<()> {
        let mut seen = Vec::with_capacity(self.distinct.len());
        for table in &mut self.distinct {
            seen.push(table.window_mut(end)?);
        }
        part.add_to(set, self.rows.window_mut(end)?, seen.into_iter(), &mut self.slots)
    }

    /// The groups whose end lies in `(after, through]`, ascending.
    pub(super) fn parts(&self, after: i64, through: i64) -> impl Iterator<Item = Part<'_>> {
        let distinct = |end| self.distinct.iter().map(|table| table.window(end)).collect();
        self.rows.range(after, through).map(move |(end, rows)| Part { rows, distinct: distinct(end) })
    }

    /// No groups, of the shape that one end has.
    pub(super) fn empty(&self) -> Result<(KeyedRows, Vec<KeyedRows>)> {
        Ok((empty_like(&self.rows)?, self.distinct.iter().map(empty_like).collect::<Result<_>>()?))
    }

    pub(super) fn drop_through(&mut self, end: i64) {
        self.rows.drop_through(end);
        self.distinct.iter_mut().for_each(|table| table.drop_through(end));
    }

    pub(super) fn tables(&mut self) -> impl Iterator<Item = &mut dyn StateTable> {
        let distinct = self.distinct.iter_mut().map(|table| table as &mut dyn StateTable);
        std::iter::once(&mut self.rows as &mut dyn StateTable).chain(distinct)
    }
}

impl Part<'_> {
    /// Adds the groups to others; a distinct value counts once, in however many parts it appears.
    /// Where they went to stands in `slots`.
    pub(super) fn add_to<'s>(
        &self,
        set: &AggregateSet,
        rows: &mut KeyedRows,
        seen: impl Iterator<Item = &'s mut KeyedRows>,
        slots: &mut Vec<u32>,
    ) -> Result<()> {
        let from = self.rows.live_slots(0, usize::MAX);
        let keys = self.rows.keys(&from)?;
        rows.slots_for(&keys, &stable_hashes(&keys, from.len())?, slots)?;
        set.merge(rows.columns_mut(), slots, self.rows.columns(), &from);
        self.count_distinct(set, rows, seen, 1)
    }

    /// Takes the groups away from others that they were added to.
    pub(super) fn take_from<'s>(
        &self,
        set: &AggregateSet,
        rows: &mut KeyedRows,
        seen: impl Iterator<Item = &'s mut KeyedRows>,
        slots: &mut Vec<u32>,
    ) -> Result<()> {
        let from = self.rows.live_slots(0, usize::MAX);
        let keys = self.rows.keys(&from)?;
        rows.slots_for(&keys, &stable_hashes(&keys, from.len())?, slots)?;
        set.take_back(rows.columns_mut(), slots, self.rows.columns(), &from);
        self.count_distinct(set, rows, seen, -1)
    }

    fn count_distinct<'s>(
        &self,
        set: &AggregateSet,
        rows: &mut KeyedRows,
        seen: impl Iterator<Item = &'s mut KeyedRows>,
        sign: i64,
    ) -> Result<()> {
        let mut groups = Vec::new();
        for (table, (seen, part)) in seen.zip(&self.distinct).enumerate() {
            let Some(part) = part else { continue };
            let from = part.live_slots(0, usize::MAX);
            let mut keys = part.keys(&from)?;
            let input = EvaluatedInput { values: keys.pop(), keep: None };
            rows.find(&keys, &stable_hashes(&keys, from.len())?, &mut groups)?;
            let signs = (sign < 0).then(|| vec![sign; from.len()]);
            let fold = Fold { slots: &groups, signs: signs.as_deref(), keep: None };
            let changes = DistinctChanges::of(seen, &keys, fold, &input)?;
            set.update_distinct(rows.columns_mut(), table, changes.fold(), &changes.values)?;
        }
        Ok(())
    }
}

/// Rows of the shape that one window of a table has.
fn empty_like(table: &WindowTable) -> Result<KeyedRows> {
    let def = table.def();
    let (identity, values) = def.schema.fields().split_at(def.identity_columns);
    let keys: Vec<DataType> = identity[1..].iter().map(|field| field.data_type().clone()).collect();
    KeyedRows::new(&keys, values)
}

/// Some rows of a batch; without a copy where they are a run.
pub(crate) fn rows_at(rows: &RecordBatch, indices: Vec<u32>) -> Result<RecordBatch> {
    let (first, last) = (indices[0] as usize, indices[indices.len() - 1] as usize);
    if last - first + 1 == indices.len() {
        return Ok(rows.slice(first, indices.len()));
    }
    Ok(take_record_batch(rows, &UInt32Array::from(indices))?)
}
