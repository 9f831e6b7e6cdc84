//! The aggregates of one operator: their inputs, evaluated once, their state columns, side by side
//! in one table, and the side tables of those that remember values or rows.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, UInt32Array};
use arrow::buffer::BooleanBuffer;
use arrow::compute::{SortOptions, prep_null_mask_filter, take};
use arrow::datatypes::{DataType, Field, FieldRef, Schema};
use datafusion::physical_plan::PhysicalExpr;
use millpond_core::key::stable_hashes;
use millpond_core::{ChangelogMode, Error, Result};
use millpond_state::{KeyedRows, NO_SLOT, StateColumn};

use super::call::AggregateCall;
use super::fold::Fold;
use super::function::AggregateFunction;
use super::order_index::OrderIndex;
use super::side::*;
use super::state::{Form, evaluate, expression_error};

/// The aggregates of one operator.
#[derive(Debug, Clone)]
pub struct AggregateSet {
    pub(super) calls: Vec<BoundCall>,
    inputs: Vec<Input>,
    pub(super) sides: Vec<Side>,
    fields: Vec<FieldRef>,
}

/// A call with its place among the state columns and side tables.
#[derive(Debug, Clone)]
pub(super) struct BoundCall {
    pub(super) call: AggregateCall,
    pub(super) form: Form,
    /// Index of its first state column.
    pub(super) column: usize,
    /// Whether another call keeps the same columns, so that they are updated once.
    pub(super) shared: bool,
    input: usize,
    /// DISTINCT: the counter whose transitions are folded into the state columns.
    pub(super) distinct: Option<Counter>,
    /// The table from which the result is read; of a rows table there is no counter.
    pub(super) source: Option<Counter>,
}

/// Arguments with their FILTER and order; calls with the same share it.
#[derive(Debug, Clone)]
struct Input {
    arguments: Vec<Arc<dyn PhysicalExpr>>,
    order_by: Vec<(Arc<dyn PhysicalExpr>, SortOptions)>,
    filter: Option<Arc<dyn PhysicalExpr>>,
    keeps_nulls: bool,
}

/// The values of an input in a batch, and which of its rows count: those that pass the FILTER and,
/// unless NULLs are respected, have a value.
#[derive(Debug, Clone)]
pub struct EvaluatedInput {
    /// The values of the arguments, then those of ORDER BY; none for `COUNT(*)`.
    pub values: Vec<ArrayRef>,
    /// Which rows count; `None`: all.
    pub keep: Option<BooleanBuffer>,
}

impl EvaluatedInput {
    /// Whether a row counts.
    pub(super) fn counts(&self, row: usize) -> bool {
        self.keep.as_ref().is_none_or(|keep| keep.value(row))
    }

    /// The same for some of the rows.
    pub fn take(&self, rows: &UInt32Array) -> Result<Self> {
        let values = self.values.iter().map(|values| Ok(take(values, rows, None)?)).collect::<Result<_>>()?;
        let keep = self
            .keep
            .as_ref()
            .map(|keep| rows.values().iter().map(|row| keep.value(*row as usize)).collect());
        Ok(Self { values, keep })
    }
}

impl AggregateSet {
    /// Binds calls to the columns of an input, whose rows are appended or also taken back.
    ///
    /// Errors: *Invalid* for an argument whose type the function cannot take.
    pub fn new(calls: &[AggregateCall], input: &Schema, mode: ChangelogMode) -> Result<Self> {
        let mut set = Self { calls: Vec::new(), inputs: Vec::new(), sides: Vec::new(), fields: Vec::new() };
        for call in calls {
            let types = call.argument_types(input)?;
            let form = Form::of(call, &types, mode);
            let index = set.input(call);
            let same = |bound: &&BoundCall| {
                bound.input == index
                    && bound.form == form
                    && bound.call.needs_distinct() == call.needs_distinct()
            };
            let twin = set.calls.iter().find(same).map(|bound| bound.column);
            let column = twin.unwrap_or(set.fields.len());
            if twin.is_none() {
                set.fields.extend(form.fields(&call.name, types.first().unwrap_or(&DataType::Null)));
            }
            let shared = twin.is_some();
            let bound = BoundCall {
                call: call.clone(),
                form,
                column,
                shared,
                input: index,
                distinct: None,
                source: None,
            };
            set.calls.push(bound);
        }
        // Tables in order of values first: DISTINCT calls share them where they can.
        for place in 0..set.calls.len() {
            if set.calls[place].form == Form::Values {
                let types = set.calls[place].call.argument_types(input)?;
                set.calls[place].source = Some(set.ordered_values(set.calls[place].input, types));
            }
        }
        for place in 0..set.calls.len() {
            let bound = &set.calls[place];
            if bound.call.needs_distinct() && bound.form != Form::Values {
                let types = bound.call.argument_types(input)?;
                set.calls[place].distinct = Some(set.counted_values(bound.input, types));
            }
        }
        for place in 0..set.calls.len() {
            if set.calls[place].form == Form::Rows {
                set.calls[place].source = Some(set.rows(place, input, mode)?);
            }
        }
        Ok(set)
    }

    fn input(&mut self, call: &AggregateCall) -> usize {
        // The order of its rows is nothing to a function of values.
        let order_by = if call.function.is_of_values() { Vec::new() } else { call.order_by.clone() };
        let new = Input {
            arguments: call.arguments.clone(),
            order_by,
            filter: call.filter.clone(),
            keeps_nulls: call.keeps_nulls(),
        };
        let same = |input: &Input| {
            input.arguments == new.arguments
                && input.order_by == new.order_by
                && input.filter == new.filter
                && input.keeps_nulls == new.keeps_nulls
        };
        self.inputs.iter().position(same).unwrap_or_else(|| {
            self.inputs.push(new);
            self.inputs.len() - 1
        })
    }

    fn ordered_values(&mut self, input: usize, types: Vec<DataType>) -> Counter {
        let same = |side: &Side| matches!(side, Side::Values(side) if side.inputs == [input]);
        let side = self.sides.iter().position(same).unwrap_or_else(|| {
            self.sides.push(Side::Values(ValuesSide { inputs: vec![input], ordered: true, types }));
            self.sides.len() - 1
        });
        Counter { side, counter: 0 }
    }

    fn counted_values(&mut self, input: usize, types: Vec<DataType>) -> Counter {
        let (inputs, sides) = (&self.inputs, &mut self.sides);
        for (index, side) in sides.iter_mut().enumerate() {
            let Side::Values(side) = side else { continue };
            if let Some(counter) = side.inputs.iter().position(|known| *known == input) {
                return Counter { side: index, counter };
            }
            let known = &inputs[side.inputs[0]];
            let new = &inputs[input];
            if !side.ordered && known.arguments == new.arguments && known.keeps_nulls == new.keeps_nulls {
                side.inputs.push(input);
                return Counter { side: index, counter: side.inputs.len() - 1 };
            }
        }
        sides.push(Side::Values(ValuesSide { inputs: vec![input], ordered: false, types }));
        Counter { side: sides.len() - 1, counter: 0 }
    }

    fn rows(&mut self, place: usize, schema: &Schema, mode: ChangelogMode) -> Result<Counter> {
        let bound = &self.calls[place];
        let (input, distinct) = (bound.input, bound.distinct);
        let same = |side: &Side| matches!(side, Side::Rows(side) if side.input == input && side.distinct == distinct);
        if let Some(side) = self.sides.iter().position(same) {
            return Ok(Counter { side, counter: 0 });
        }
        let order = self.inputs[input]
            .order_by
            .iter()
            .map(|(expr, options)| Ok((expr.data_type(schema).map_err(expression_error)?, *options)));
        let side = RowsSide {
            input,
            types: bound.call.argument_types(schema)?,
            order: order.collect::<Result<_>>()?,
            distinct,
            retracts: mode != ChangelogMode::Append,
        };
        self.sides.push(Side::Rows(side));
        Ok(Counter { side: self.sides.len() - 1, counter: 0 })
    }

    /// The state columns of all calls, in order.
    pub fn state_fields(&self) -> &[FieldRef] {
        &self.fields
    }

    /// The side tables, in order.
    pub fn side_tables(&self) -> Vec<SideDef> {
        self.sides.iter().enumerate().map(|(number, side)| side.def(number)).collect()
    }

    /// An empty index for a side table; `None` if no result depends on its order.
    pub fn new_index(&self, side: usize) -> Result<Option<OrderIndex>> {
        self.sides[side].new_index()
    }

    /// Adds all rows of a side table to an empty index; gives their last arrival, or 0.
    pub fn fill_index(
        &self,
        side: usize,
        index: &mut OrderIndex,
        rows: &KeyedRows,
        groups: &mut KeyedRows,
    ) -> Result<i64> {
        self.sides[side].fill_index(index, rows, groups)
    }

    /// Adds rows of a side table to its index.
    pub fn index_rows(
        &self,
        side: usize,
        index: &mut OrderIndex,
        rows: &KeyedRows,
        groups: &mut KeyedRows,
        slots: &[u32],
    ) -> Result<()> {
        self.sides[side].index_rows(index, rows, groups, slots).map(|_last_arrival| ())
    }

    /// The slots of the groups of some rows of a side table.
    pub fn groups_of(
        &self,
        side: usize,
        rows: &KeyedRows,
        groups: &mut KeyedRows,
        slots: &[u32],
    ) -> Result<Vec<u32>> {
        self.sides[side].groups_of(rows, groups, slots)
    }

    /// Whether rows must be numbered in order of arrival.
    pub fn needs_arrivals(&self) -> bool {
        self.sides.iter().any(|side| matches!(side, Side::Rows(_)))
            || self.calls.iter().any(|bound| matches!(bound.form, Form::Arrival { .. }))
    }

    /// The last arrival that the state columns tell of, or 0.
    pub fn last_arrival(&self, columns: &[StateColumn]) -> i64 {
        let arrivals = self.calls.iter().filter(|bound| matches!(bound.form, Form::Arrival { .. }));
        let last = arrivals.filter_map(|bound| columns[bound.column + 1].i64s().iter().copied().max());
        last.max().map_or(0, |last| (last - 1).max(0))
    }

    /// The last arrival of the rows of a side table, or 0.
    pub fn last_arrival_of_side(&self, side: usize, rows: &KeyedRows) -> Result<i64> {
        match &self.sides[side] {
            Side::Values(_) => Ok(0),
            Side::Rows(_) => last_arrival(rows),
        }
    }

    /// The result columns, in order.
    pub fn result_fields(&self) -> Vec<FieldRef> {
        let field = |bound: &BoundCall| {
            let nullable = !bound.call.function.counts();
            Arc::new(Field::new(&bound.call.name, bound.call.output_type.clone(), nullable))
        };
        self.calls.iter().map(field).collect()
    }

    /// Evaluates the inputs over a batch, each once. Arguments are evaluated only where their
    /// FILTER passes: the other rows may hold values that they cannot take.
    pub fn evaluate(&self, rows: &RecordBatch) -> Result<Vec<EvaluatedInput>> {
        self.inputs.iter().map(|input| input.evaluate(rows)).collect()
    }

    /// Folds a batch into the state columns and the side tables.
    pub fn update(
        &self,
        columns: &mut [StateColumn],
        sides: &mut [SideMut<'_>],
        rows: GroupedRows<'_>,
        inputs: &[EvaluatedInput],
    ) -> Result<()> {
        for bound in self.calls.iter().filter(|bound| bound.distinct.is_none() && !bound.shared) {
            let input = &inputs[bound.input];
            let fold = Fold { keep: input.keep.as_ref(), ..rows.fold() };
            bound.fold(columns, fold, &input.values)?;
        }
        let mut transitions: Vec<Vec<Transitions>> = Vec::with_capacity(self.sides.len());
        for (side, table) in self.sides.iter().zip(sides.iter_mut()) {
            transitions.push(match side {
                Side::Rows(_) => Vec::new(),
                Side::Values(side) => side.count(table, rows, inputs)?,
            });
        }
        for bound in self.calls.iter().filter(|bound| bound.form != Form::Rows && !bound.shared) {
            let Some(Counter { side, counter }) = bound.distinct else { continue };
            let changes = &transitions[side][counter];
            let values = match bound.form {
                Form::Count => Vec::new(),
                _ => changes.take(&inputs[bound.input].values)?,
            };
            bound.fold(columns, changes.fold(), &values)?;
        }
        for (side, table) in self.sides.iter().zip(sides) {
            if let Side::Rows(side) = side {
                let distinct = side.distinct.map(|counter| &transitions[counter.side][counter.counter]);
                side.change(table, rows, &inputs[side.input], distinct)?;
            }
        }
        Ok(())
    }

    /// Adds the groups of another table (columns of the same set, at `from`) to those at `into`.
    /// DISTINCT calls are left to [`AggregateSet::merge_side`]: their sets must be united instead.
    pub fn merge(&self, columns: &mut [StateColumn], into: &[u32], other: &[StateColumn], from: &[u32]) {
        for bound in self.calls.iter().filter(|bound| bound.distinct.is_none() && !bound.shared) {
            let range = bound.range();
            bound.merge(&mut columns[range.clone()], into, &other[range], from);
        }
    }

    /// Adds the rows of another side table (`sign` 1), or takes values back that were added (−1),
    /// beside `groups`, without an index; folds values that are new to their group, or gone from it,
    /// into the DISTINCT calls.
    pub fn merge_side(
        &self,
        side: usize,
        groups: &mut KeyedRows,
        into: &mut KeyedRows,
        part: &KeyedRows,
        sign: i64,
    ) -> Result<()> {
        let slots = part.live_slots(0, usize::MAX);
        let mut of = Vec::new();
        if let Side::Values(values) = &self.sides[side] {
            let mut keys = part.keys(&slots)?;
            keys.truncate(keys.len() - values.types.len());
            groups.find(&keys, &stable_hashes(&keys, slots.len())?, &mut of)?;
        }
        self.merge_side_at(side, groups.columns_mut(), &of, into, part, sign)
    }

    /// The same where the groups of the values are known, in the order of their slots.
    pub fn merge_side_at(
        &self,
        side: usize,
        groups: &mut [StateColumn],
        of: &[u32],
        into: &mut KeyedRows,
        part: &KeyedRows,
        sign: i64,
    ) -> Result<()> {
        let slots = part.live_slots(0, usize::MAX);
        let table = &mut SideMut { rows: into, index: None, owed: None };
        let values = match &self.sides[side] {
            Side::Rows(rows) => return rows.merge(table, part, &slots),
            Side::Values(values) => values,
        };
        if of.contains(&NO_SLOT) {
            return Err(Error::internal("a value of an aggregate belongs to no group"));
        }
        let (transitions, columns) = values.merge(table, part, &slots, of, sign)?;
        for bound in self.calls.iter().filter(|bound| bound.form != Form::Rows && !bound.shared) {
            if let Some(Counter { counter, .. }) = bound.distinct.filter(|counter| counter.side == side) {
                let changes = &transitions[counter];
                bound.fold(groups, changes.fold(), &changes.take(&columns)?)?;
            }
        }
        Ok(())
    }

    /// Whether a result is read from a side table, rather than from state columns only.
    pub fn reads_sides(&self) -> bool {
        self.calls.iter().any(|bound| bound.source.is_some())
    }

    /// The order of a side table whose rows are all of one group.
    pub fn index_of_one(&self, side: usize, rows: &KeyedRows, group: u32) -> Result<Option<OrderIndex>> {
        let mut index = self.new_index(side)?;
        if let Some(index) = &mut index {
            let slots = rows.live_slots(0, usize::MAX);
            self.sides[side].insert_all(index, rows, &slots, &vec![group; slots.len()])?;
        }
        Ok(index)
    }
}

impl Input {
    fn evaluate(&self, rows: &RecordBatch) -> Result<EvaluatedInput> {
        let filter = self.filter.as_ref().map(|filter| evaluate(filter, rows)).transpose()?;
        let filter: Option<BooleanArray> = match filter {
            Some(filter) => Some(passing(&filter)?),
            None => None,
        };
        let value = |argument: &Arc<dyn PhysicalExpr>| -> Result<ArrayRef> {
            let Some(filter) = &filter else { return evaluate(argument, rows) };
            let values = argument.evaluate_selection(rows, filter).map_err(expression_error)?;
            values.into_array(rows.num_rows()).map_err(expression_error)
        };
        let order_by = self.order_by.iter().map(|(expr, _)| expr);
        let values = self.arguments.iter().chain(order_by).map(value).collect::<Result<Vec<_>>>()?;
        let mut keep = filter.map(|filter| filter.values().clone());
        for values in values.iter().take(self.arguments.len()).filter(|_| !self.keeps_nulls) {
            if let Some(nulls) = values.logical_nulls().filter(|nulls| nulls.null_count() > 0) {
                keep = Some(match keep {
                    None => nulls.into_inner(),
                    Some(keep) => &keep & nulls.inner(),
                });
            }
        }
        Ok(EvaluatedInput { values, keep })
    }
}

fn passing(filter: &ArrayRef) -> Result<BooleanArray> {
    let filter = filter.as_boolean_opt().ok_or_else(|| Error::internal("FILTER is not BOOLEAN"))?;
    Ok(if filter.null_count() > 0 { prep_null_mask_filter(filter) } else { filter.clone() })
}

impl BoundCall {
    pub(super) fn range(&self) -> std::ops::Range<usize> {
        self.column..self.column + self.form.width()
    }

    /// All of the call's state columns.
    pub(super) fn columns<'a>(&self, columns: &'a [StateColumn]) -> &'a [StateColumn] {
        &columns[self.range()]
    }

    /// The call's state columns.
    pub(super) fn state<'a, const N: usize>(&self, columns: &'a [StateColumn]) -> &'a [StateColumn; N] {
        columns[self.range()].try_into().expect("the form knows the number of its columns")
    }

    fn fold(&self, columns: &mut [StateColumn], fold: Fold<'_>, values: &[ArrayRef]) -> Result<()> {
        let columns = &mut columns[self.range()];
        let value = || {
            let missing = || Error::internal(format!("{} without an argument", self.call.name));
            values.first().ok_or_else(missing)
        };
        match self.form {
            Form::Values | Form::Rows => Ok(()),
            Form::Count => {
                fold.count(&mut columns[0]);
                Ok(())
            }
            Form::IntegerSum => fold.add_integers(state_mut(columns), value()?),
            Form::DecimalSum => fold.add_decimals(state_mut(columns), value()?),
            Form::FloatSum => fold.add_floats(state_mut(columns), value()?),
            Form::Moments { sums } => {
                fold.moments(columns, &values[..values.len().min(if sums == 2 { 1 } else { 2 })])
            }
            Form::Truths => fold.truths(state_mut(columns), value()?),
            Form::Xor => fold.xor(state_mut(columns), value()?),
            Form::Bits { all } => fold.bits(all, &mut columns[0], value()?),
            Form::Extreme(extreme) => fold.extreme(extreme, &mut columns[0], value()?),
            Form::Arrival { last } => fold.arrival(last, state_mut(columns), value()?),
        }
    }

    pub(super) fn is(&self, function: &AggregateFunction) -> bool {
        self.call.function == *function
    }
}

pub(super) fn state_mut<const N: usize>(columns: &mut [StateColumn]) -> &mut [StateColumn; N] {
    columns.try_into().expect("the form knows the number of its columns")
}
