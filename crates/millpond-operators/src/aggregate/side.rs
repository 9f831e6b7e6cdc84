//! Side tables: what some aggregates must remember of single values or rows of a group.
//!
//! ```text
//! values_<n>   key, value      ─▶ number of rows, one counter per FILTER     DISTINCT, MIN of changes, …
//! rows_<n>     key, arrival    ─▶ arguments and order of a row               ARRAY_AGG, LISTAGG, …
//! ```
//!
//! Both are partitioned by the group's key, so that they are restored and re-split with it. Calls
//! over the same arguments share a table. Values whose order matters have an [`OrderIndex`] beside
//! them, as all rows have; while windows collect rows they do without, and it is built when they fire.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, UInt32Array};
use arrow::compute::{SortOptions, take};
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type};
use millpond_core::key::{extended_hashes, stable_hashes};
use millpond_core::{Error, Result};
use millpond_state::{KeyedRows, NO_SLOT, StateColumn};

use super::fold::Fold;
use super::order_index::{OrderIndex, ascending};
use super::owed::Owed;
use super::set::EvaluatedInput;

/// The columns of a side table beside the group's key.
#[derive(Debug, Clone)]
pub struct SideDef {
    /// The table's name within its operator.
    pub name: String,
    /// What tells its rows apart within a group.
    pub identity: Vec<FieldRef>,
    /// What it holds.
    pub values: Vec<FieldRef>,
}

/// A side table, to be changed.
#[derive(Debug)]
pub struct SideMut<'a> {
    /// Its rows.
    pub rows: &'a mut KeyedRows,
    /// Their order, where it is kept up to date.
    pub index: Option<&'a mut OrderIndex>,
    /// What was taken back too early, where rows are taken back.
    pub owed: Option<&'a mut Owed>,
}

/// A side table, to be read.
#[derive(Debug, Clone, Copy)]
pub struct SideRef<'a> {
    /// Its rows.
    pub rows: &'a KeyedRows,
    /// Their order; `None` only where no result depends on it.
    pub index: Option<&'a OrderIndex>,
}

/// Rows of a batch with their groups.
#[derive(Debug, Clone, Copy)]
pub struct GroupedRows<'a> {
    /// The key columns.
    pub keys: &'a [ArrayRef],
    /// Their stable hashes.
    pub hashes: &'a [u64],
    /// The slots of the groups.
    pub slots: &'a [u32],
    /// +1 or −1 per row; `None`: all rows are added.
    pub signs: Option<&'a [i64]>,
    /// When the rows arrived, ascending; empty where no call asks for it.
    pub arrivals: &'a [i64],
}

impl<'a> GroupedRows<'a> {
    pub(super) fn fold(&self) -> Fold<'a> {
        Fold { slots: self.slots, signs: self.signs, keep: None, arrivals: self.arrivals }
    }

    /// Adds each row's sign to the count of its group.
    pub fn count(&self, counts: &mut StateColumn) {
        self.fold().count(counts);
    }

    pub(super) fn sign(&self, row: usize) -> i64 {
        self.signs.map_or(1, |signs| signs[row])
    }

    /// The identity of some rows in a side table, by their values.
    pub(super) fn identity_of(
        &self,
        some: &[u32],
        values: &[ArrayRef],
    ) -> Result<(Vec<ArrayRef>, Arc<[u64]>)> {
        let rows = Selection { all: self.slots.len(), some: Some(UInt32Array::from(some.to_vec())) };
        let values = values.iter().map(|column| rows.take(column)).collect::<Result<Vec<_>>>()?;
        self.identity(&rows, &values)
    }

    /// The identity of rows in a side table: their key and more columns.
    fn identity(&self, rows: &Selection, more: &[ArrayRef]) -> Result<(Vec<ArrayRef>, Arc<[u64]>)> {
        let keys = self.keys.iter().map(|key| rows.take(key));
        let mut identity = keys.collect::<Result<Vec<_>>>()?;
        let first = identity.len();
        identity.extend(more.iter().cloned());
        let hashes = rows.rows().map(|row| self.hashes[row]).collect();
        let hashes = extended_hashes(hashes, &identity[first..])?;
        Ok((identity, hashes))
    }
}

/// A counter of a values table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counter {
    pub(super) side: usize,
    pub(super) counter: usize,
}

/// A side table of an [`super::AggregateSet`].
#[derive(Debug, Clone)]
pub(super) enum Side {
    Values(ValuesSide),
    Rows(RowsSide),
}

/// How often each value occurs in its group.
#[derive(Debug, Clone)]
pub(super) struct ValuesSide {
    /// Inputs that are counted here, a counter each: the same arguments under other FILTERs.
    pub(super) inputs: Vec<usize>,
    /// Whether results depend on the order of values; then there is one counter.
    pub(super) ordered: bool,
    pub(super) types: Vec<DataType>,
}

/// The rows of each group.
#[derive(Debug, Clone)]
pub(super) struct RowsSide {
    pub(super) input: usize,
    /// Types of the arguments.
    pub(super) types: Vec<DataType>,
    /// Types and directions of ORDER BY.
    pub(super) order: Vec<(DataType, SortOptions)>,
    /// Which counter decides whether a row is the first of its arguments.
    pub(super) distinct: Option<Counter>,
    /// Whether rows may be taken back.
    pub(super) retracts: bool,
}

/// Values that appeared in their group (+1) or went from it (−1): one kind of change per row.
#[derive(Debug, Default)]
pub(super) struct Transitions {
    pub(super) rows: Vec<u32>,
    pub(super) slots: Vec<u32>,
    pub(super) signs: Vec<i64>,
    pub(super) any_gone: bool,
}

impl Transitions {
    fn push(&mut self, row: usize, slot: u32, sign: i64) {
        self.rows.push(row as u32);
        self.slots.push(slot);
        self.signs.push(sign);
        self.any_gone |= sign < 0;
    }

    pub(super) fn fold(&self) -> Fold<'_> {
        let signs = self.any_gone.then_some(self.signs.as_slice());
        Fold { slots: &self.slots, signs, keep: None, arrivals: &[] }
    }

    pub(super) fn take(&self, columns: &[ArrayRef]) -> Result<Vec<ArrayRef>> {
        let rows = UInt32Array::from(self.rows.clone());
        columns.iter().map(|column| Ok(take(column, &rows, None)?)).collect()
    }
}

/// Some rows of a batch; all of them without a copy.
struct Selection {
    all: usize,
    some: Option<UInt32Array>,
}

impl Selection {
    fn of(all: usize, keeps: impl Fn(usize) -> bool, is_all: bool) -> Self {
        let some = || (0..all).filter(|row| keeps(*row)).map(|row| row as u32).collect::<Vec<_>>();
        Self { all, some: (!is_all).then(|| UInt32Array::from(some())) }
    }

    fn rows(&self) -> impl Iterator<Item = usize> + '_ {
        let len = self.some.as_ref().map_or(self.all, Array::len);
        (0..len).map(|position| self.row(position))
    }

    fn row(&self, position: usize) -> usize {
        self.some.as_ref().map_or(position, |some| some.value(position) as usize)
    }

    fn take(&self, column: &ArrayRef) -> Result<ArrayRef> {
        match &self.some {
            None => Ok(column.clone()),
            Some(some) => Ok(take(column, some, None)?),
        }
    }
}

impl Side {
    pub(super) fn def(&self, number: usize) -> SideDef {
        let field = |name: String, data_type: &DataType| Arc::new(Field::new(name, data_type.clone(), true));
        let integer = |name: String| Arc::new(Field::new(name, DataType::Int64, false));
        let numbered = |name: &str, index: usize, count: usize| match count {
            1 => name.to_string(),
            _ => format!("{name}_{index}"),
        };
        let fields = |name: &str, types: &[DataType]| -> Vec<FieldRef> {
            let named = types.iter().enumerate().map(|(i, t)| field(numbered(name, i, types.len()), t));
            named.collect()
        };
        match self {
            Side::Values(side) => {
                let counters = side.inputs.len();
                let counters = (0..counters).map(|counter| integer(numbered("rows", counter, counters)));
                SideDef {
                    name: format!("values_{number}"),
                    identity: fields("value", &side.types),
                    values: counters.collect(),
                }
            }
            Side::Rows(side) => {
                let order: Vec<DataType> =
                    side.order.iter().map(|(data_type, _)| data_type.clone()).collect();
                let mut values = fields("value", &side.types);
                values.extend(fields("order", &order));
                SideDef { name: format!("rows_{number}"), identity: vec![integer("arrival".into())], values }
            }
        }
    }

    /// An empty index, if results depend on the order of the table.
    pub(super) fn new_index(&self) -> Result<Option<OrderIndex>> {
        match self {
            Side::Values(side) if !side.ordered => Ok(None),
            Side::Values(side) => {
                let order: Vec<_> = side.types.iter().map(|t| (t.clone(), ascending())).collect();
                OrderIndex::new(&order).map(Some)
            }
            Side::Rows(side) => {
                let index = OrderIndex::new(&side.order)?;
                Ok(Some(if side.retracts { index.with_copies(&side.types)? } else { index }))
            }
        }
    }

    /// Adds all rows of a table to an index; gives the last arrival.
    pub(super) fn fill_index(
        &self,
        index: &mut OrderIndex,
        rows: &KeyedRows,
        groups: &mut KeyedRows,
    ) -> Result<i64> {
        self.index_rows(index, rows, groups, &rows.live_slots(0, usize::MAX))
    }

    /// Adds rows of a table to an index; gives the last arrival.
    pub(super) fn index_rows(
        &self,
        index: &mut OrderIndex,
        rows: &KeyedRows,
        groups: &mut KeyedRows,
        slots: &[u32],
    ) -> Result<i64> {
        let of = self.groups_of(rows, groups, slots)?;
        self.insert_all(index, rows, slots, &of)
    }

    /// The slots of the groups of some rows.
    pub(super) fn groups_of(
        &self,
        rows: &KeyedRows,
        groups: &mut KeyedRows,
        slots: &[u32],
    ) -> Result<Vec<u32>> {
        let mut keys = rows.keys(slots)?;
        keys.truncate(keys.len() - self.identity_width());
        let mut of = Vec::new();
        groups.find(&keys, &stable_hashes(&keys, slots.len())?, &mut of)?;
        if of.contains(&NO_SLOT) {
            return Err(Error::corrupt("a row of an aggregate belongs to no group"));
        }
        Ok(of)
    }

    /// How many columns tell rows of a group apart.
    fn identity_width(&self) -> usize {
        match self {
            Side::Values(side) => side.types.len(),
            Side::Rows(_) => 1,
        }
    }

    /// Adds rows of these groups to an index; gives the last arrival.
    pub(super) fn insert_all(
        &self,
        index: &mut OrderIndex,
        rows: &KeyedRows,
        slots: &[u32],
        of: &[u32],
    ) -> Result<i64> {
        let mut keys = rows.keys(slots)?;
        let identity = keys.split_off(keys.len() - self.identity_width());
        match self {
            Side::Values(_) => {
                index.insert(of, slots, &identity, None)?;
                slots.iter().for_each(|slot| {
                    index.mark_as(*slot, true);
                });
                Ok(0)
            }
            Side::Rows(side) => {
                let arrivals = identity[0].as_primitive::<Int64Type>().values();
                let columns = gathered(rows, slots)?;
                let (values, order) = columns.split_at(side.types.len());
                index.insert(of, slots, order, Some(arrivals))?;
                index.insert_copies(of, slots, values, arrivals)?;
                Ok(arrivals.iter().copied().max().unwrap_or(0))
            }
        }
    }
}

/// The last arrival of the rows of a rows table, or 0.
pub(super) fn last_arrival(rows: &KeyedRows) -> Result<i64> {
    let identity = rows.keys(&rows.live_slots(0, usize::MAX))?;
    let arrivals = identity.last().and_then(|arrivals| arrivals.as_primitive_opt::<Int64Type>());
    Ok(arrivals.and_then(|arrivals| arrivals.values().iter().copied().max()).unwrap_or(0))
}

/// All value columns of some rows.
pub(super) fn gathered(rows: &KeyedRows, slots: &[u32]) -> Result<Vec<ArrayRef>> {
    rows.columns().iter().map(|column| column.gather(slots)).collect()
}

impl ValuesSide {
    /// Counts the rows of a batch; gives the transitions of each counter.
    pub(super) fn count(
        &self,
        side: &mut SideMut<'_>,
        rows: GroupedRows<'_>,
        inputs: &[EvaluatedInput],
    ) -> Result<Vec<Transitions>> {
        let keeps: Vec<_> = self.inputs.iter().map(|input| inputs[*input].keep.as_ref()).collect();
        let counts = |counter: usize, row: usize| keeps[counter].is_none_or(|keep| keep.value(row));
        let any = |row: usize| (0..keeps.len()).any(|counter| counts(counter, row));
        let selection = Selection::of(rows.slots.len(), any, keeps.iter().any(|keep| keep.is_none()));
        let columns = &inputs[self.inputs[0]].values[..self.types.len()];
        let values = columns.iter().map(|column| selection.take(column)).collect::<Result<Vec<_>>>()?;
        let (identity, hashes) = rows.identity(&selection, &values)?;
        let weight = |counter: usize, position: usize| {
            let row = selection.row(position);
            if counts(counter, row) { rows.sign(row) } else { 0 }
        };
        let group = |position: usize| rows.slots[selection.row(position)];
        let mut transitions = self.add(side, &identity, &hashes, group, weight)?;
        for transition in &mut transitions {
            transition.rows.iter_mut().for_each(|row| *row = selection.row(*row as usize) as u32);
        }
        Ok(transitions)
    }

    /// Adds the counts of another table, times `sign`, whose rows are in these groups; gives the transitions of
    /// each counter, by row of `part`.
    pub(super) fn merge(
        &self,
        side: &mut SideMut<'_>,
        part: &KeyedRows,
        slots: &[u32],
        groups: &[u32],
        sign: i64,
    ) -> Result<(Vec<Transitions>, Vec<ArrayRef>)> {
        let identity = part.keys(slots)?;
        let hashes = stable_hashes(&identity, slots.len())?;
        let counts: Vec<&[i64]> = part.columns().iter().map(|column| column.i64s()).collect();
        let weight = |counter: usize, position: usize| sign * counts[counter][slots[position] as usize];
        let group = |position: usize| groups[position];
        let transitions = self.add(side, &identity, &hashes, group, weight)?;
        Ok((transitions, identity[identity.len() - self.types.len()..].to_vec()))
    }

    fn add(
        &self,
        side: &mut SideMut<'_>,
        identity: &[ArrayRef],
        hashes: &[u64],
        group: impl Fn(usize) -> u32,
        weight: impl Fn(usize, usize) -> i64,
    ) -> Result<Vec<Transitions>> {
        let mut found = Vec::new();
        let groups: Vec<u32> = (0..hashes.len()).map(&group).collect();
        side.rows.slots_in_groups(identity, hashes, Some(&groups), &mut found)?;
        let mut transitions: Vec<Transitions> = Vec::with_capacity(self.inputs.len());
        let mut any_empty = false;
        for counter in 0..self.inputs.len() {
            let counts = side.rows.columns_mut()[counter].i64s_mut();
            let mut changes = Transitions::default();
            for (position, slot) in found.iter().enumerate() {
                let weight = weight(counter, position);
                let count = &mut counts[*slot as usize];
                let before = *count > 0;
                *count += weight;
                any_empty |= *count == 0;
                if *count < 0
                    && let Some(owed) = side.owed.as_deref_mut()
                {
                    owed.values.push((*slot, group(position)));
                }
                if before != (*count > 0) {
                    changes.push(position, group(position), if before { -1 } else { 1 });
                }
            }
            transitions.push(changes);
        }
        if let Some(index) = side.index.as_deref_mut() {
            let values = &identity[identity.len() - self.types.len()..];
            self.update_index(index, side.rows, &found, values, group)?;
        }
        if any_empty {
            remove_uncounted(side.rows, found)?;
        }
        Ok(transitions)
    }

    fn update_index(
        &self,
        index: &mut OrderIndex,
        rows: &KeyedRows,
        found: &[u32],
        values: &[ArrayRef],
        group: impl Fn(usize) -> u32,
    ) -> Result<()> {
        let counts = rows.columns()[0].i64s();
        let (mut added, mut removed) = (Vec::new(), Vec::new());
        for (position, slot) in found.iter().enumerate() {
            let counted = counts[*slot as usize] != 0;
            if index.mark_as(*slot, counted) {
                (if counted { &mut added } else { &mut removed }).push(position as u32);
            }
        }
        let groups = |positions: &[u32]| positions.iter().map(|p| group(*p as usize)).collect::<Vec<_>>();
        let taken = |positions: &[u32]| {
            let positions = UInt32Array::from(positions.to_vec());
            values.iter().map(|value| Ok(take(value, &positions, None)?)).collect::<Result<Vec<_>>>()
        };
        if !added.is_empty() {
            let slots: Vec<u32> = added.iter().map(|position| found[*position as usize]).collect();
            index.insert(&groups(&added), &slots, &taken(&added)?, None)?;
        }
        if !removed.is_empty() {
            index.remove(&groups(&removed), &taken(&removed)?, None)?;
        }
        Ok(())
    }
}

/// Removes rows whose counters are all zero.
fn remove_uncounted(rows: &mut KeyedRows, mut slots: Vec<u32>) -> Result<()> {
    let counters = rows.columns();
    slots.retain(|slot| counters.iter().all(|counter| counter.i64s()[*slot as usize] == 0));
    slots.sort_unstable();
    slots.dedup();
    rows.remove(&slots)
}

impl RowsSide {
    /// Adds and takes back rows of a batch. Additions come first: a row taken back is the oldest of
    /// its copies, so that this gives the same as one row after another.
    pub(super) fn change(
        &self,
        side: &mut SideMut<'_>,
        rows: GroupedRows<'_>,
        input: &EvaluatedInput,
        distinct: Option<&Transitions>,
    ) -> Result<()> {
        let (mut added, mut removed) = (Vec::new(), Vec::new());
        match distinct {
            Some(transitions) => {
                for (row, sign) in transitions.rows.iter().zip(&transitions.signs) {
                    (if *sign > 0 { &mut added } else { &mut removed }).push(*row);
                }
            }
            None => {
                for row in 0..rows.slots.len() {
                    if input.keep.as_ref().is_none_or(|keep| keep.value(row)) {
                        (if rows.sign(row) > 0 { &mut added } else { &mut removed }).push(row as u32);
                    }
                }
            }
        }
        if !added.is_empty() {
            self.add(side, rows, &UInt32Array::from(added), input)?;
        }
        if !removed.is_empty() {
            self.take_back(side, rows, &UInt32Array::from(removed), input)?;
        }
        Ok(())
    }

    fn add(
        &self,
        side: &mut SideMut<'_>,
        rows: GroupedRows<'_>,
        added: &UInt32Array,
        input: &EvaluatedInput,
    ) -> Result<()> {
        let arrivals: Vec<i64> = added.values().iter().map(|row| rows.arrivals[*row as usize]).collect();
        let identity: ArrayRef = Arc::new(arrow::array::Int64Array::from(arrivals.clone()));
        let selection = Selection { all: rows.slots.len(), some: Some(added.clone()) };
        let (identity, hashes) = rows.identity(&selection, &[identity])?;
        let mut slots = Vec::new();
        let groups: Vec<u32> = selection.rows().map(|row| rows.slots[row]).collect();
        side.rows.slots_in_groups(&identity, &hashes, Some(&groups), &mut slots)?;
        let columns = input.values.iter().map(|column| selection.take(column)).collect::<Result<Vec<_>>>()?;
        for (column, values) in side.rows.columns_mut().iter_mut().zip(&columns) {
            column.store(&slots, values)?;
        }
        if let Some(index) = side.index.as_deref_mut() {
            let (values, order) = columns.split_at(self.types.len());
            index.insert(&groups, &slots, order, Some(&arrivals))?;
            index.insert_copies(&groups, &slots, values, &arrivals)?;
        }
        Ok(())
    }

    fn take_back(
        &self,
        side: &mut SideMut<'_>,
        rows: GroupedRows<'_>,
        removed: &UInt32Array,
        input: &EvaluatedInput,
    ) -> Result<()> {
        let values = &input.values[..self.types.len()];
        let values =
            values.iter().map(|column| Ok(take(column, removed, None)?)).collect::<Result<Vec<_>>>()?;
        let groups: Vec<u32> = removed.values().iter().map(|row| rows.slots[*row as usize]).collect();
        let missing = self.take_rows_back(side, groups.clone(), &values)?;
        match side.owed.as_deref_mut() {
            Some(owed) => owed.owe_rows(&groups, &values, &missing),
            None => Ok(()),
        }
    }

    /// Takes the oldest copy of each row out; gives the rows of which there is none.
    pub(super) fn take_rows_back(
        &self,
        side: &mut SideMut<'_>,
        groups: Vec<u32>,
        values: &[ArrayRef],
    ) -> Result<Vec<u32>> {
        let index =
            side.index.as_deref_mut().ok_or_else(|| Error::internal("rows are taken back by index"))?;
        let copies = index.take_copies(&groups, values)?;
        let missing = (0..copies.len() as u32).filter(|row| copies[*row as usize].is_none()).collect();
        let (groups, slots): (Vec<u32>, Vec<u32>) =
            groups.into_iter().zip(copies).filter_map(|(group, slot)| Some((group, slot?))).unzip();
        let identity = side.rows.keys(&slots)?;
        let arrivals = identity[identity.len() - 1].as_primitive::<Int64Type>().values().to_vec();
        let order = gathered(side.rows, &slots)?.split_off(self.types.len());
        index.remove(&groups, &order, Some(&arrivals))?;
        side.rows.remove(&slots)?;
        Ok(missing)
    }

    /// Adds the rows of another table.
    pub(super) fn merge(&self, side: &mut SideMut<'_>, part: &KeyedRows, slots: &[u32]) -> Result<()> {
        let identity = part.keys(slots)?;
        let mut into = Vec::new();
        side.rows.slots_for(&identity, &stable_hashes(&identity, slots.len())?, &mut into)?;
        for (column, other) in side.rows.columns_mut().iter_mut().zip(part.columns()) {
            column.store(&into, &other.gather(slots)?)?;
        }
        Ok(())
    }
}
