//! The aggregates of one operator: their inputs, evaluated once, and their state columns, side by
//! side in one table.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, UInt32Array};
use arrow::buffer::BooleanBuffer;
use arrow::compute::{prep_null_mask_filter, take};
use arrow::datatypes::{DataType, Field, FieldRef, Schema};
use datafusion::physical_plan::PhysicalExpr;
use millpond_core::{Error, Result};
use millpond_state::{KeyedRows, StateColumn, StateValues};

use super::call::AggregateCall;
use super::distinct::DistinctChanges;
use super::fold::{Extreme, Fold, add_compensated, add_wide, float_above};
use super::state::{Form, evaluate, expression_error};

/// The aggregates of one operator.
#[derive(Debug, Clone)]
pub struct AggregateSet {
    pub(super) calls: Vec<BoundCall>,
    inputs: Vec<Input>,
    fields: Vec<FieldRef>,
}

/// A call with its place among the state columns.
#[derive(Debug, Clone)]
pub(super) struct BoundCall {
    pub(super) call: AggregateCall,
    pub(super) form: Form,
    /// Index of its first state column.
    pub(super) column: usize,
    input: usize,
}

/// An argument with its FILTER; calls with the same share it.
#[derive(Debug, Clone)]
struct Input {
    argument: Option<Arc<dyn PhysicalExpr>>,
    filter: Option<Arc<dyn PhysicalExpr>>,
    data_type: DataType,
    /// Index of its table of distinct values, if a call needs one.
    distinct: Option<usize>,
}

/// The values of an input in a batch, and which of its rows count: those that pass the FILTER and
/// have a value.
#[derive(Debug, Clone)]
pub struct EvaluatedInput {
    /// The argument's values; `None` for `COUNT(*)`.
    pub values: Option<ArrayRef>,
    /// Which rows count; `None`: all.
    pub keep: Option<BooleanBuffer>,
}

impl EvaluatedInput {
    /// The same for some of the rows.
    pub fn take(&self, rows: &UInt32Array) -> Result<Self> {
        let values = self.values.as_ref().map(|values| take(values, rows, None)).transpose()?;
        let keep = self
            .keep
            .as_ref()
            .map(|keep| rows.values().iter().map(|row| keep.value(*row as usize)).collect());
        Ok(Self { values, keep })
    }
}

impl AggregateSet {
    /// Binds calls to the columns of an input.
    ///
    /// Errors: *Invalid* for an argument whose type the function cannot take.
    pub fn new(calls: &[AggregateCall], input: &Schema) -> Result<Self> {
        let mut set = Self { calls: Vec::new(), inputs: Vec::new(), fields: Vec::new() };
        let mut distinct = 0;
        for call in calls {
            let argument_type = call.argument_type(input)?;
            let form = Form::of(call, &argument_type);
            let index = set.input(call, &argument_type);
            if call.needs_distinct() && set.inputs[index].distinct.is_none() {
                set.inputs[index].distinct = Some(distinct);
                distinct += 1;
            }
            let column = set.fields.len();
            set.fields.extend(form.fields(&call.name, &argument_type));
            set.calls.push(BoundCall { call: call.clone(), form, column, input: index });
        }
        Ok(set)
    }

    fn input(&mut self, call: &AggregateCall, data_type: &DataType) -> usize {
        let same = |input: &Input| input.argument == call.argument && input.filter == call.filter;
        self.inputs.iter().position(same).unwrap_or_else(|| {
            self.inputs.push(Input {
                argument: call.argument.clone(),
                filter: call.filter.clone(),
                data_type: data_type.clone(),
                distinct: None,
            });
            self.inputs.len() - 1
        })
    }

    /// The state columns of all calls, in order.
    pub fn state_fields(&self) -> &[FieldRef] {
        &self.fields
    }

    /// The value column of each table of distinct values, in order.
    pub fn distinct_fields(&self) -> Vec<FieldRef> {
        let tables = self.distinct_inputs().into_iter();
        tables
            .map(|input| Arc::new(Field::new("value", self.inputs[input].data_type.clone(), true)))
            .collect()
    }

    /// The result columns, in order.
    pub fn result_fields(&self) -> Vec<FieldRef> {
        let field = |bound: &BoundCall| {
            let nullable = bound.form != Form::Count;
            Arc::new(Field::new(&bound.call.name, bound.call.output_type.clone(), nullable))
        };
        self.calls.iter().map(field).collect()
    }

    /// Evaluates the inputs over a batch, each once. Arguments are evaluated only where their
    /// FILTER passes: the other rows may hold values that they cannot take.
    pub fn evaluate(&self, rows: &RecordBatch) -> Result<Vec<EvaluatedInput>> {
        self.inputs.iter().map(|input| input.evaluate(rows)).collect()
    }

    /// Folds a batch into the state columns. `seen` are the tables of distinct values, `keys` the
    /// group of each row, `fold.keep` is ignored.
    pub fn update(
        &self,
        columns: &mut [StateColumn],
        seen: &mut [&mut KeyedRows],
        keys: &[ArrayRef],
        fold: Fold<'_>,
        inputs: &[EvaluatedInput],
    ) -> Result<()> {
        for bound in self.calls.iter().filter(|bound| !bound.call.needs_distinct()) {
            let input = &inputs[bound.input];
            let fold = Fold { keep: input.keep.as_ref(), ..fold };
            bound.fold(columns, fold, input.values.as_ref())?;
        }
        for (table, input) in self.distinct_inputs().into_iter().enumerate() {
            let fold = Fold { keep: inputs[input].keep.as_ref(), ..fold };
            let changes = DistinctChanges::of(seen[table], keys, fold, &inputs[input])?;
            self.update_distinct(columns, table, changes.fold(), &changes.values)?;
        }
        Ok(())
    }

    /// Folds values that are new to their group, or gone from it, into the DISTINCT calls over one
    /// table of distinct values.
    pub fn update_distinct(
        &self,
        columns: &mut [StateColumn],
        table: usize,
        fold: Fold<'_>,
        values: &ArrayRef,
    ) -> Result<()> {
        let over = |bound: &&BoundCall| {
            bound.call.needs_distinct() && self.inputs[bound.input].distinct == Some(table)
        };
        self.calls.iter().filter(over).try_for_each(|bound| bound.fold(columns, fold, Some(values)))
    }

    /// Adds the groups of another table (columns of the same set, at `from`) to those at `into`.
    /// DISTINCT calls are left out: their sets must be united instead.
    pub fn merge(&self, columns: &mut [StateColumn], into: &[u32], other: &[StateColumn], from: &[u32]) {
        for bound in self.calls.iter().filter(|bound| !bound.call.needs_distinct()) {
            let range = bound.range();
            bound.merge(&mut columns[range.clone()], into, &other[range], from);
        }
    }

    /// Indices of the inputs that have a table of distinct values, in the order of the tables.
    fn distinct_inputs(&self) -> Vec<usize> {
        let mut inputs: Vec<usize> =
            (0..self.inputs.len()).filter(|i| self.inputs[*i].distinct.is_some()).collect();
        inputs.sort_by_key(|input| self.inputs[*input].distinct);
        inputs
    }
}

impl Input {
    fn evaluate(&self, rows: &RecordBatch) -> Result<EvaluatedInput> {
        let filter = self.filter.as_ref().map(|filter| evaluate(filter, rows)).transpose()?;
        let filter: Option<BooleanArray> = match filter {
            Some(filter) => Some(passing(&filter)?),
            None => None,
        };
        let values = match (&self.argument, &filter) {
            (None, _) => None,
            (Some(argument), None) => Some(evaluate(argument, rows)?),
            (Some(argument), Some(filter)) => {
                let values = argument.evaluate_selection(rows, filter).map_err(expression_error)?;
                Some(values.into_array(rows.num_rows()).map_err(expression_error)?)
            }
        };
        let nulls =
            values.as_ref().and_then(|values| values.logical_nulls()).filter(|nulls| nulls.null_count() > 0);
        let keep = match (filter, nulls) {
            (None, None) => None,
            (Some(filter), None) => Some(filter.values().clone()),
            (None, Some(nulls)) => Some(nulls.inner().clone()),
            (Some(filter), Some(nulls)) => Some(filter.values() & nulls.inner()),
        };
        Ok(EvaluatedInput { values, keep })
    }
}

fn passing(filter: &ArrayRef) -> Result<BooleanArray> {
    let filter = filter.as_boolean_opt().ok_or_else(|| Error::internal("FILTER is not BOOLEAN"))?;
    Ok(if filter.null_count() > 0 { prep_null_mask_filter(filter) } else { filter.clone() })
}

impl BoundCall {
    pub(super) fn range(&self) -> std::ops::Range<usize> {
        let width = match self.form {
            Form::Count | Form::Extreme(_) => 1,
            Form::IntegerSum => 2,
            Form::DecimalSum => 3,
            Form::FloatSum => 6,
        };
        self.column..self.column + width
    }

    /// The call's state columns.
    pub(super) fn state<'a, const N: usize>(&self, columns: &'a [StateColumn]) -> &'a [StateColumn; N] {
        columns[self.range()].try_into().expect("the form knows the number of its columns")
    }

    fn fold(&self, columns: &mut [StateColumn], fold: Fold<'_>, values: Option<&ArrayRef>) -> Result<()> {
        let columns = &mut columns[self.range()];
        if self.form == Form::Count {
            fold.count(&mut columns[0]);
            return Ok(());
        }
        let values =
            values.ok_or_else(|| Error::internal(format!("{} without an argument", self.call.name)))?;
        match self.form {
            Form::Count => Ok(()),
            Form::IntegerSum => fold.add_integers(state_mut(columns), values),
            Form::DecimalSum => fold.add_decimals(state_mut(columns), values),
            Form::FloatSum => fold.add_floats(state_mut(columns), values),
            Form::Extreme(extreme) => fold.extreme(extreme, &mut columns[0], values),
        }
    }

    fn merge(&self, columns: &mut [StateColumn], into: &[u32], other: &[StateColumn], from: &[u32]) {
        let pairs = || into.iter().zip(from).map(|(into, from)| (*into as usize, *from as usize));
        let add = |column: &mut StateColumn, other: &StateColumn| {
            let (values, other) = (column.i64s_mut(), other.i64s());
            pairs().for_each(|(into, from)| values[into] += other[from]);
        };
        match self.form {
            Form::Count => add(&mut columns[0], &other[0]),
            Form::IntegerSum => {
                let (sums, other_sums) = (columns[0].i128s_mut(), other[0].i128s());
                pairs().for_each(|(into, from)| sums[into] += other_sums[from]);
                add(&mut columns[1], &other[1]);
            }
            Form::DecimalSum => {
                add(&mut columns[1], &other[1]);
                add(&mut columns[2], &other[2]);
                let [sums, _, carries] = state_mut::<3>(columns);
                let (sums, carries, other_sums) = (sums.i128s_mut(), carries.i64s_mut(), other[0].i128s());
                pairs()
                    .for_each(|(into, from)| add_wide(&mut sums[into], &mut carries[into], other_sums[from]));
            }
            Form::FloatSum => {
                (2..6).for_each(|column| add(&mut columns[column], &other[column]));
                let [sums, compensations, ..] = state_mut::<6>(columns);
                let (sums, compensations) = (sums.f64s_mut(), compensations.f64s_mut());
                let (other_sums, other_compensations) = (other[0].f64s(), other[1].f64s());
                pairs().for_each(|(into, from)| {
                    add_compensated(&mut sums[into], &mut compensations[into], other_sums[from]);
                    compensations[into] += other_compensations[from];
                });
            }
            Form::Extreme(extreme) => merge_extreme(extreme, &mut columns[0], &other[0], pairs()),
        }
    }
}

fn state_mut<const N: usize>(columns: &mut [StateColumn]) -> &mut [StateColumn; N] {
    columns.try_into().expect("the form knows the number of its columns")
}

fn merge_extreme(
    extreme: Extreme,
    column: &mut StateColumn,
    other: &StateColumn,
    pairs: impl Iterator<Item = (usize, usize)>,
) {
    let valid = column.valid.as_mut().expect("an extreme may be NULL");
    let pairs = pairs.filter(|(_, from)| other.is_valid(*from as u32));
    macro_rules! improve {
        ($best:expr, $other:expr, $order:expr) => {
            for (into, from) in pairs {
                if !valid[into] || extreme.is_better($order(&$other[from], &$best[into])) {
                    valid[into] = true;
                    $best[into] = $other[from].clone();
                }
            }
        };
    }
    let float_order = |new: &f64, old: &f64| float_above(*new, *old).cmp(&float_above(*old, *new));
    match (&mut column.values, &other.values) {
        (StateValues::I64(best), StateValues::I64(other)) => improve!(best, other, Ord::cmp),
        (StateValues::F64(best), StateValues::F64(other)) => improve!(best, other, float_order),
        (StateValues::I128(best), StateValues::I128(other)) => improve!(best, other, Ord::cmp),
        (StateValues::Bool(best), StateValues::Bool(other)) => improve!(best, other, Ord::cmp),
        (StateValues::Bytes(best), StateValues::Bytes(other)) => improve!(best, other, Ord::cmp),
        (best, other) => panic!("extremes in the layouts {best:?} and {other:?} cannot meet"),
    }
}
