//! Groups: keyed aggregate states by the end of a pane or window.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use arrow::datatypes::{DataType, FieldRef};
use datafusion::physical_plan::PhysicalExpr;
use millpond_core::Result;
use millpond_core::key::stable_hashes;
use millpond_state::{KeyedRows, StateTable, TableKind, WindowTable};

use crate::aggregate::{AggregateSet, GroupedRows, OrderIndex, SideMut, evaluate, state_table};
use crate::operator::BuildContext;

/// Groups by (pane or window end, key), with the side tables of aggregates that remember values or rows.
pub(super) struct Groups {
    pub(super) rows: WindowTable,
    sides: Vec<WindowTable>,
    slots: Vec<u32>,
}

/// The groups of one end.
pub(super) struct Part<'a> {
    rows: &'a KeyedRows,
    sides: Vec<Option<&'a KeyedRows>>,
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
        let sides = set.side_tables().into_iter();
        let sides = sides.map(|side| table(&format!("{name}_{}", side.name), &side.identity, &side.values));
        Ok(Self {
            sides: sides.collect::<Result<_>>()?,
            rows: table(name, &[], set.state_fields())?,
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
        arrivals: &[i64],
    ) -> Result<()> {
        let keys: Vec<ArrayRef> = keys.iter().map(|(key, _)| evaluate(key, rows)).collect::<Result<_>>()?;
        let hashes = stable_hashes(&keys, rows.num_rows())?;
        let inputs = set.evaluate(rows)?;
        let groups = self.rows.window_mut(end)?;
        groups.slots_for(&keys, &hashes, &mut self.slots)?;
        let mut sides = Vec::with_capacity(self.sides.len());
        for table in &mut self.sides {
            sides.push(SideMut { rows: table.window_mut(end)?, index: None, owed: None });
        }
        let slots = &self.slots;
        let rows = GroupedRows { keys: &keys, hashes: &hashes, slots, signs: None, arrivals };
        set.update(groups.columns_mut(), &mut sides, rows, &inputs)
    }

    /// Adds other groups to those of one end.
    pub(super) fn merge(&mut self, end: i64, set: &AggregateSet, part: &Part<'_>) -> Result<()> {
        let mut sides = Vec::with_capacity(self.sides.len());
        for table in &mut self.sides {
            sides.push(table.window_mut(end)?);
        }
        part.add_to(set, self.rows.window_mut(end)?, sides.into_iter(), &mut self.slots)
    }

    /// The groups whose end lies in `(after, through]`, ascending.
    pub(super) fn parts(&self, after: i64, through: i64) -> impl Iterator<Item = Part<'_>> {
        self.rows.range(after, through).map(|(end, rows)| Part { rows, sides: self.sides(end) })
    }

    /// No groups, of the shape that one end has.
    pub(super) fn empty(&self) -> Result<(KeyedRows, Vec<KeyedRows>)> {
        Ok((empty_like(&self.rows)?, self.sides.iter().map(empty_like).collect::<Result<_>>()?))
    }

    pub(super) fn drop_through(&mut self, end: i64) {
        self.rows.drop_through(end);
        self.sides.iter_mut().for_each(|table| table.drop_through(end));
    }

    pub(super) fn tables(&mut self) -> impl Iterator<Item = &mut dyn StateTable> {
        let sides = self.sides.iter_mut().map(|table| table as &mut dyn StateTable);
        std::iter::once(&mut self.rows as &mut dyn StateTable).chain(sides)
    }

    /// The side tables of one end; `None` where no row has come yet.
    pub(super) fn sides(&self, end: i64) -> Vec<Option<&KeyedRows>> {
        self.sides.iter().map(|table| table.window(end)).collect()
    }

    /// The orders of the side tables of one end.
    pub(super) fn indexes(&mut self, set: &AggregateSet, end: i64) -> Result<Vec<Option<OrderIndex>>> {
        let sides: Vec<_> = self.sides.iter().map(|table| table.window(end)).collect();
        indexes(set, self.rows.window_mut(end)?, &sides)
    }

    /// The last arrival of any row, or 0.
    pub(super) fn last_arrival(&self, set: &AggregateSet) -> Result<i64> {
        let mut last = 0;
        for (end, rows) in self.rows.range(i64::MIN, i64::MAX) {
            last = last.max(set.last_arrival(rows.columns()));
            for (side, rows) in self.sides(end).into_iter().enumerate() {
                if let Some(rows) = rows {
                    last = last.max(set.last_arrival_of_side(side, rows)?);
                }
            }
        }
        Ok(last)
    }
}

impl Part<'_> {
    /// Adds the groups to others; a distinct value counts once, in however many parts it appears.
    /// Where they went to stands in `slots`.
    pub(super) fn add_to<'s>(
        &self,
        set: &AggregateSet,
        rows: &mut KeyedRows,
        sides: impl Iterator<Item = &'s mut KeyedRows>,
        slots: &mut Vec<u32>,
    ) -> Result<()> {
        let from = self.rows.live_slots(0, usize::MAX);
        let keys = self.rows.keys(&from)?;
        rows.slots_for(&keys, &stable_hashes(&keys, from.len())?, slots)?;
        set.merge(rows.columns_mut(), slots, self.rows.columns(), &from);
        self.merge_sides(set, rows, sides, 1)
    }

    /// Takes the groups away from others that they were added to.
    pub(super) fn take_from<'s>(
        &self,
        set: &AggregateSet,
        rows: &mut KeyedRows,
        sides: impl Iterator<Item = &'s mut KeyedRows>,
        slots: &mut Vec<u32>,
    ) -> Result<()> {
        let from = self.rows.live_slots(0, usize::MAX);
        let keys = self.rows.keys(&from)?;
        rows.slots_for(&keys, &stable_hashes(&keys, from.len())?, slots)?;
        set.take_back(rows.columns_mut(), slots, self.rows.columns(), &from);
        self.merge_sides(set, rows, sides, -1)
    }

    fn merge_sides<'s>(
        &self,
        set: &AggregateSet,
        rows: &mut KeyedRows,
        sides: impl Iterator<Item = &'s mut KeyedRows>,
        sign: i64,
    ) -> Result<()> {
        for (side, (into, part)) in sides.zip(&self.sides).enumerate() {
            if let Some(part) = part {
                set.merge_side(side, rows, into, part, sign)?;
            }
        }
        Ok(())
    }
}

/// The orders of side tables beside their groups; `None` where no result depends on one.
pub(super) fn indexes(
    set: &AggregateSet,
    groups: &mut KeyedRows,
    sides: &[Option<&KeyedRows>],
) -> Result<Vec<Option<OrderIndex>>> {
    let mut indexes = Vec::with_capacity(sides.len());
    for (side, rows) in sides.iter().enumerate() {
        let mut index = set.new_index(side)?;
        if let (Some(index), Some(rows)) = (&mut index, rows) {
            set.fill_index(side, index, rows, groups)?;
        }
        indexes.push(index);
    }
    Ok(indexes)
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
