//! Calc: a projection and a filter in one operator, and the unions of streams.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::common::DFSchema;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{Expr, Filter, LogicalPlan, Projection, Union, Volatility};
use datafusion::physical_expr::ScalarFunctionExpr;
use datafusion::physical_plan::PhysicalExpr;
use datafusion::physical_plan::expressions::Column;
use millpond_core::{ChangelogMode, Error, Result};
use millpond_operators::calc::CalcFactory;
use millpond_operators::expression::{plain_column, reads_epoch_itself};
use millpond_operators::union::UnionFactory;

use super::{Chooser, Identity, NodeFacts, Operator, column_index};
use crate::plan_error::{from_datafusion, unsupported};
use crate::properties::{Role, joint_mode, surviving_keys};
use crate::stream_plan::{NodeId, StateBound};

/// What a Calc computes, over the columns of its input.
#[derive(Debug, Clone)]
pub(super) struct Calc {
    pub(super) input: NodeId,
    pub(super) projection: Vec<Arc<dyn PhysicalExpr>>,
    pub(super) filter: Option<Arc<dyn PhysicalExpr>>,
    pub(super) schema: SchemaRef,
    pub(super) identity: Option<Identity>,
}

impl Calc {
    /// For each output column, the input column that it is.
    fn sources(&self) -> Vec<Option<usize>> {
        self.projection.iter().map(plain_column).collect()
    }

    /// Its input, and for each output column the input column that it is.
    pub(super) fn columns(&self) -> (NodeId, Vec<Option<usize>>) {
        (self.input, self.sources())
    }

    /// Whether a row that is taken back could be another one than the row that was given.
    fn is_volatile(&self) -> bool {
        self.projection.iter().chain(&self.filter).any(|expr| volatile_function(expr).is_some())
    }

    /// This Calc and the one below it as one; `None` if that would compute or filter twice.
    fn over(&self, below: &Calc) -> Result<Option<Calc>> {
        if self.filter.is_some() && below.filter.is_some() {
            return Ok(None);
        }
        let mut uses = vec![0; below.projection.len()];
        for expr in self.projection.iter().chain(&self.filter) {
            expr.apply(|node| {
                if let Some(column) = node.downcast_ref::<Column>() {
                    uses[column.index()] += 1;
                }
                Ok(TreeNodeRecursion::Continue)
            })
            .map_err(from_datafusion)?;
        }
        let once =
            |(column, uses): (usize, &usize)| *uses <= 1 || plain_column(&below.projection[column]).is_some();
        if !uses.iter().enumerate().all(once) {
            return Ok(None);
        }
        let onto = |expr: &Arc<dyn PhysicalExpr>| -> Result<Arc<dyn PhysicalExpr>> {
            let moved = Arc::clone(expr).transform_up(|node| match node.downcast_ref::<Column>() {
                Some(column) => Ok(Transformed::yes(Arc::clone(&below.projection[column.index()]))),
                None => Ok(Transformed::no(node)),
            });
            Ok(moved.map_err(from_datafusion)?.data)
        };
        Ok(Some(Calc {
            input: below.input,
            projection: self.projection.iter().map(onto).collect::<Result<_>>()?,
            filter: self.filter.as_ref().map(onto).transpose()?.or_else(|| below.filter.clone()),
            schema: Arc::clone(&self.schema),
            identity: None,
        }))
    }
}

impl Chooser<'_> {
    pub(super) fn projection(&mut self, projection: &Projection) -> Result<NodeId> {
        if let Some(ranked) =
            self.ranked(&projection.input, projection.expr.clone(), projection.schema.as_ref())?
        {
            return Ok(ranked);
        }
        let ((node, filter), input) = match projection.input.as_ref() {
            LogicalPlan::Filter(filter) => (self.timely(filter)?, filter.input.as_ref()),
            other => ((self.choose(other)?, None), other),
        };
        let schema = Arc::clone(projection.schema.inner());
        self.calc(node, input.schema(), &projection.expr, filter.as_ref(), schema)
    }

    pub(super) fn filter(&mut self, filter: &Filter) -> Result<NodeId> {
        let schema = filter.input.schema();
        let exprs: Vec<Expr> = schema.columns().into_iter().map(Expr::Column).collect();
        let plan = LogicalPlan::Filter(filter.clone());
        if let Some(ranked) = self.ranked(&plan, exprs.clone(), schema)? {
            return Ok(ranked);
        }
        let (node, rest) = self.timely(filter)?;
        self.calc(node, schema, &exprs, rest.as_ref(), Arc::clone(schema.inner()))
    }

    /// Adds a Calc; none if it would change nothing.
    pub(super) fn calc(
        &mut self,
        input: NodeId,
        input_schema: &DFSchema,
        exprs: &[Expr],
        filter: Option<&Expr>,
        schema: SchemaRef,
    ) -> Result<NodeId> {
        if exprs.is_empty() && filter.is_none() {
            // No column is wanted, only the number of rows: any columns will do.
            return Ok(input);
        }
        let projection =
            exprs.iter().map(|expr| self.session.physical(expr, input_schema)).collect::<Result<Vec<_>>>()?;
        let filter = filter.map(|filter| self.session.physical(filter, input_schema)).transpose()?;
        self.add_calc(Calc { input, projection, filter, schema, identity: None })
    }

    /// Only these columns, in this order.
    pub(super) fn selection(
        &mut self,
        input: NodeId,
        columns: &[usize],
        identity: Option<Identity>,
    ) -> Result<NodeId> {
        let fields = Arc::clone(&self.node(input).schema);
        let projection = columns.iter().map(|column| plain(&fields, *column)).collect();
        let schema =
            Schema::new(columns.iter().map(|c| Arc::clone(&fields.fields()[*c])).collect::<Vec<_>>());
        match columns.is_empty() {
            true => Ok(input),
            false => {
                self.add_calc(Calc { input, projection, filter: None, schema: Arc::new(schema), identity })
            }
        }
    }

    /// The rows without their columns: how many there are is all that is wanted.
    fn without_columns(&mut self, input: NodeId) -> Result<NodeId> {
        let schema = Arc::new(Schema::empty());
        self.add_calc(Calc { input, projection: Vec::new(), filter: None, schema, identity: None })
    }

    /// A node in which each expression is a column, and where; the filter is applied.
    ///
    /// Nothing is added if all of them are columns already.
    pub(super) fn columns_of(
        &mut self,
        input: NodeId,
        input_schema: &DFSchema,
        exprs: &[Expr],
        filter: Option<&Expr>,
    ) -> Result<(NodeId, Vec<usize>)> {
        let plain: Option<Vec<usize>> = exprs.iter().map(|expr| column_index(input_schema, expr)).collect();
        if let (Some(columns), None) = (&plain, filter) {
            return Ok((input, columns.clone()));
        }
        let mut distinct: Vec<&Expr> = Vec::new();
        let mut places = Vec::with_capacity(exprs.len());
        for expr in exprs {
            let place = distinct.iter().position(|known| *known == expr).unwrap_or(distinct.len());
            if place == distinct.len() {
                distinct.push(expr);
            }
            places.push(place);
        }
        if distinct.is_empty() {
            let exprs: Vec<Expr> = input_schema.columns().into_iter().take(1).map(Expr::Column).collect();
            return Ok((self.computed(input, input_schema, &exprs, filter)?, places));
        }
        let exprs: Vec<Expr> = distinct.into_iter().cloned().collect();
        Ok((self.computed(input, input_schema, &exprs, filter)?, places))
    }

    fn computed(
        &mut self,
        input: NodeId,
        input_schema: &DFSchema,
        exprs: &[Expr],
        filter: Option<&Expr>,
    ) -> Result<NodeId> {
        let fields = exprs.iter().map(|expr| field_of(expr, input_schema)).collect::<Result<Vec<_>>>()?;
        self.calc(input, input_schema, exprs, filter, Arc::new(Schema::new(fields)))
    }

    pub(super) fn add_calc(&mut self, calc: Calc) -> Result<NodeId> {
        // What selects from a shared source keeps its own uid, whatever else is read.
        if let Some(below) = self.calcs.get(&calc.input)
            && below.identity.is_none()
            && let Some(merged) = calc.over(below)?
        {
            return self.add_calc(merged);
        }
        let input = calc.input;
        if self.updated_by(input).is_some() && calc.is_volatile() {
            return self.remembered(calc);
        }
        let before = self.node(input);
        let sources = calc.sources();
        let in_place = sources.iter().enumerate().all(|(place, source)| *source == Some(place));
        if calc.filter.is_none() && in_place && before.schema.fields() == calc.schema.fields() {
            return Ok(input);
        }
        let place = |column: usize| sources.iter().position(|source| *source == Some(column));
        let roles = &self.facts[input].roles;
        let operator = Operator {
            mode: before.properties.mode,
            upsert_keys: surviving_keys(&before.properties.upsert_keys, place),
            facts: NodeFacts {
                roles: sources
                    .iter()
                    .zip(&calc.projection)
                    .map(|(source, expr)| source.map_or(computed_role(expr), |column| roles[column]))
                    .collect(),
                ..self.facts[input].clone()
            },
            factory: Arc::new(CalcFactory {
                filter: calc.filter.clone(),
                projection: calc.projection.clone(),
                schema: Arc::clone(&calc.schema),
            }),
            semantics: format!("{} WHERE {}", texts(&calc.projection), texts(calc.filter.as_slice())),
            identity: calc.identity.clone(),
            inputs: vec![input],
            state: StateBound::None,
        };
        let spread = self.spread.get(&input).map(|spread| surviving_keys(spread, place));
        let node = self.add_operator(operator);
        self.spread_by(node, spread.unwrap_or_default());
        self.calcs.insert(node, calc);
        Ok(node)
    }

    pub(super) fn union(&mut self, union: &Union) -> Result<NodeId> {
        let mut inputs = Vec::new();
        for input in &union.inputs {
            let node = self.choose(input)?;
            // A shared sub-plan may carry columns beyond those of its logical node.
            let wanted: Vec<usize> = (0..input.schema().fields().len()).collect();
            inputs.push(match wanted.is_empty() {
                true => self.without_columns(node)?,
                false => self.selection(node, &wanted, None)?,
            });
        }
        let schema = Arc::clone(union.schema.inner());
        let role = |column: usize| {
            let role = self.facts[inputs[0]].roles[column];
            let same = inputs.iter().all(|input| self.facts[*input].roles[column] == role);
            if same { role } else { Role::Plain }
        };
        let operator = Operator {
            mode: joint_mode(inputs.iter().map(|input| self.mode(*input))),
            upsert_keys: Vec::new(),
            state: StateBound::None,
            facts: NodeFacts {
                updated_by: inputs.iter().find_map(|input| self.facts[*input].updated_by),
                ..NodeFacts::new(
                    (0..schema.fields().len()).map(role).collect(),
                    inputs.iter().all(|input| self.facts[*input].single),
                )
            },
            factory: Arc::new(UnionFactory { inputs: inputs.len(), schema }),
            semantics: String::new(),
            identity: None,
            inputs,
        };
        Ok(self.add_operator(operator))
    }

    /// Why a stream changes its rows; `None` if it does not.
    pub(super) fn updated_by(&self, node: NodeId) -> Option<&'static str> {
        match self.mode(node) {
            ChangelogMode::Append => None,
            ChangelogMode::Upsert | ChangelogMode::Retract => {
                Some(self.facts[node].updated_by.unwrap_or("the query"))
            }
        }
    }
}

/// What a computed column means to time.
fn computed_role(expr: &Arc<dyn PhysicalExpr>) -> Role {
    let call = expr.downcast_ref::<ScalarFunctionExpr>();
    match call.is_some_and(|call| call.fun().name() == "proctime") {
        true => Role::ProcessingTime,
        false => Role::Plain,
    }
}

/// The first function of an expression whose value is another one the next time, if there is one.
pub(super) fn volatile_function(expr: &Arc<dyn PhysicalExpr>) -> Option<String> {
    let mut found = None;
    let visited = expr.apply(|node| {
        let function = node.downcast_ref::<ScalarFunctionExpr>();
        if let Some(function) = function
            && (function.fun().signature().volatility == Volatility::Volatile || reads_epoch_itself(node))
        {
            let name = function.name().to_uppercase();
            found = Some(if name == "RANDOM" { "RAND".into() } else { name });
            return Ok(TreeNodeRecursion::Stop);
        }
        Ok(TreeNodeRecursion::Continue)
    });
    visited.ok().and(found)
}

/// The refusal of a function whose value changes, over rows that do.
pub(super) fn changing_value(function: &str, clause: &str) -> Error {
    unsupported(format!("{function} over rows that {clause} changes"))
        .with_detail("a row that is taken back would not be the row that was given")
        .with_hint(format!("compute it before {clause}, in a subquery over rows that only come"))
}

/// The expression that is one column of `schema`.
pub(super) fn plain(schema: &Schema, column: usize) -> Arc<dyn PhysicalExpr> {
    Arc::new(Column::new(schema.field(column).name(), column))
}

fn field_of(expr: &Expr, schema: &DFSchema) -> Result<Field> {
    use datafusion::logical_expr::ExprSchemable;
    let (_, field) = expr.to_field(schema).map_err(from_datafusion)?;
    Ok(field.as_ref().clone())
}

/// Expressions as text, for what makes an operator what it is.
pub(super) fn texts(exprs: &[Arc<dyn PhysicalExpr>]) -> String {
    exprs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
