//! UNNEST in FROM: `CROSS JOIN UNNEST(t.items) AS u (item)`, also `LEFT JOIN … ON TRUE` and
//! `WITH ORDINALITY`.
//!
//! When the relation is planned, what stands beside it is not known yet: it is a leaf that refers
//! to outer columns. Once the whole query is planned, the join of a table with that leaf becomes
//! one [`Unnest`] over the table.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, DFSchema, DFSchemaRef, DataFusionError, TableReference};
use datafusion::logical_expr::planner::{PlannedRelation, RelationPlannerContext, RelationPlanning};
use datafusion::logical_expr::{
    Expr, ExprSchemable, Extension, JoinType, LogicalPlan, LogicalPlanBuilder, UserDefinedLogicalNodeCore,
};
use millpond_core::{Error, Result};
use sqlparser::ast;

use crate::plan_error::{carried, from_datafusion};
use crate::sql_type::sql_type;

/// UNNEST before it is known what it stands beside.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct UnnestRelation {
    /// The array or map; names of the other relation are outer references.
    items: Expr,
    ordinality: bool,
    schema: DFSchemaRef,
}

/// A table, each row once for every item of an array or map of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Unnest {
    pub(crate) input: LogicalPlan,
    /// The array or map, over the input.
    pub(crate) items: Expr,
    /// Rows without items are kept.
    pub(crate) outer: bool,
    pub(crate) ordinality: bool,
    /// The input's columns, then the items'.
    schema: DFSchemaRef,
}

impl Unnest {
    fn try_new(
        input: LogicalPlan,
        items: Expr,
        outer: bool,
        ordinality: bool,
        columns: &[(Option<TableReference>, FieldRef)],
    ) -> Result<Self, DataFusionError> {
        // The names are given, the types are those of the items as they are now.
        let types = item_fields(&items.get_type(input.schema().as_ref())?, ordinality).map_err(carried)?;
        let named = columns
            .iter()
            .zip(types)
            .map(|((table, field), data_type)| (table.clone(), Arc::new(data_type.with_name(field.name()))));
        let own = input.schema().iter().map(|(table, field)| (table.cloned(), Arc::clone(field)));
        let fields = own.chain(named).collect();
        let schema = Arc::new(DFSchema::new_with_metadata(fields, HashMap::new())?);
        Ok(Self { input, items, outer, ordinality, schema })
    }

    /// How many columns come from the input.
    pub(crate) fn width(&self) -> usize {
        self.input.schema().fields().len()
    }

    /// The columns of the items, and their number if it is wanted.
    pub(crate) fn item_fields(&self) -> Vec<(Option<TableReference>, FieldRef)> {
        let items = self.schema.iter().skip(self.width());
        items.map(|(table, field)| (table.cloned(), Arc::clone(field))).collect()
    }
}

/// Plans `UNNEST(items) [WITH ORDINALITY] [AS alias (columns)]`.
pub(crate) fn planned(
    mut items: Vec<ast::Expr>,
    ordinality: bool,
    alias: Option<ast::TableAlias>,
    context: &mut dyn RelationPlannerContext,
) -> Result<RelationPlanning, DataFusionError> {
    let (Some(items), true) = (items.pop(), items.is_empty()) else {
        return Err(carried(
            Error::invalid("UNNEST takes one array or map")
                .with_hint("write CROSS JOIN UNNEST(a) AS x (…) CROSS JOIN UNNEST(b) AS y (…)"),
        ));
    };
    let items = context.sql_to_expr(items, &DFSchema::empty())?;
    let data_type = items.get_type(&DFSchema::empty())?;
    let fields =
        named(item_fields(&data_type, ordinality).map_err(carried)?, alias.as_ref()).map_err(carried)?;
    let table = alias.map(|alias| TableReference::bare(alias.name.value));
    let fields = fields.into_iter().map(|field| (table.clone(), Arc::new(field))).collect();
    let schema = Arc::new(DFSchema::new_with_metadata(fields, HashMap::new())?);
    let node = Arc::new(UnnestRelation { items, ordinality, schema });
    let plan = LogicalPlan::Extension(Extension { node });
    Ok(RelationPlanning::Planned(Box::new(PlannedRelation::new(plan, None))))
}

/// The columns that the items of an array or map give.
fn item_fields(data_type: &DataType, ordinality: bool) -> Result<Vec<Field>> {
    let nullable = |field: &FieldRef| field.as_ref().clone().with_nullable(true);
    let mut fields: Vec<Field> = match data_type {
        DataType::List(item) => match item.data_type() {
            DataType::Struct(fields) => fields.iter().map(nullable).collect(),
            other => vec![Field::new("f0", other.clone(), true)],
        },
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(fields) => {
                let names = ["KEY", "VALUE"].into_iter();
                fields.iter().zip(names).map(|(field, name)| nullable(field).with_name(name)).collect()
            }
            other => return Err(Error::internal(format!("a map of {other}"))),
        },
        other => {
            return Err(Error::invalid(format!("UNNEST of {}", sql_type(other)))
                .with_hint("it takes an ARRAY, MAP or MULTISET"));
        }
    };
    if ordinality {
        fields.push(Field::new("ORDINALITY", DataType::Int32, true));
    }
    Ok(fields)
}

fn named(fields: Vec<Field>, alias: Option<&ast::TableAlias>) -> Result<Vec<Field>> {
    let names = alias.map_or(&[][..], |alias| &alias.columns);
    if names.is_empty() {
        return Ok(fields);
    }
    if names.len() != fields.len() {
        return Err(Error::invalid(format!(
            "UNNEST gives {} columns but {} names are given",
            fields.len(),
            names.len()
        ))
        .with_hint("an array of ROW gives a column for each field, a map two, WITH ORDINALITY one more"));
    }
    Ok(fields.into_iter().zip(names).map(|(field, name)| field.with_name(&name.name.value)).collect())
}

/// The plan in which each UNNEST stands over the table that it is joined with.
pub(crate) fn with_unnests(plan: LogicalPlan) -> Result<LogicalPlan> {
    let rewritten = plan.transform_up_with_subqueries(|node| {
        if let LogicalPlan::Join(join) = &node
            && let Some(relation) = relation_of(&join.right)
        {
            let outer = match join.join_type {
                JoinType::Inner => false,
                JoinType::Left => true,
                other => {
                    let join = other.to_string().to_uppercase();
                    return Err(carried(
                        Error::invalid(format!("{join} JOIN with UNNEST is not supported"))
                            .with_hint("CROSS JOIN UNNEST(…), or LEFT JOIN UNNEST(…) ON TRUE"),
                    ));
                }
            };
            let filter = match join.filter.clone().filter(|filter| !is_true(filter)) {
                Some(_) if outer => {
                    return Err(carried(
                        Error::invalid("LEFT JOIN with UNNEST ON a condition is not supported")
                            .with_hint("LEFT JOIN UNNEST(…) ON TRUE; filter the array with WHERE or CASE"),
                    ));
                }
                filter => filter,
            };
            if !join.on.is_empty() {
                return Err(carried(Error::internal("UNNEST is joined by keys")));
            }
            let unnested = unnest(relation, join.left.as_ref().clone(), outer)?;
            let plan = match filter {
                None => unnested,
                Some(filter) => LogicalPlanBuilder::from(unnested).filter(filter)?.build()?,
            };
            return Ok(Transformed::yes(plan));
        }
        match own_relation(&node) {
            Some(relation) if relation.items.column_refs().is_empty() && !has_outer(&relation.items) => {
                let one_row = LogicalPlanBuilder::empty(true).build()?;
                let relation = relation.clone();
                Ok(Transformed::yes(unnest(&relation, one_row, false)?))
            }
            _ => Ok(Transformed::no(node)),
        }
    });
    Ok(rewritten.map_err(from_datafusion)?.data)
}

fn is_true(filter: &Expr) -> bool {
    matches!(filter, Expr::Literal(datafusion::common::ScalarValue::Boolean(Some(true)), _))
}

fn own_relation(plan: &LogicalPlan) -> Option<&UnnestRelation> {
    match plan {
        LogicalPlan::Extension(extension) => extension.node.as_any().downcast_ref(),
        _ => None,
    }
}

/// The UNNEST that is the right side of a join.
fn relation_of(plan: &LogicalPlan) -> Option<&UnnestRelation> {
    match plan {
        LogicalPlan::Subquery(subquery) => relation_of(&subquery.subquery),
        other => own_relation(other),
    }
}

fn has_outer(expr: &Expr) -> bool {
    expr.exists(|expr| Ok(matches!(expr, Expr::OuterReferenceColumn(..)))).unwrap_or(true)
}

fn unnest(
    relation: &UnnestRelation,
    input: LogicalPlan,
    outer: bool,
) -> Result<LogicalPlan, DataFusionError> {
    // What was outside is now below.
    let items = relation.items.clone().transform(|expr| match expr {
        Expr::OuterReferenceColumn(_, column) if input.schema().has_column(&column) => {
            Ok(Transformed::yes(Expr::Column(column)))
        }
        other => Ok(Transformed::no(other)),
    })?;
    let columns: Vec<_> =
        relation.schema.iter().map(|(table, field)| (table.cloned(), Arc::clone(field))).collect();
    let node = Unnest::try_new(input, items.data, outer, relation.ordinality, &columns)?;
    Ok(LogicalPlan::Extension(Extension { node: Arc::new(node) }))
}

impl PartialOrd for UnnestRelation {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.items.partial_cmp(&other.items)
    }
}

impl UserDefinedLogicalNodeCore for UnnestRelation {
    fn name(&self) -> &str {
        "UNNEST here"
    }
    fn inputs(&self) -> Vec<&LogicalPlan> {
        Vec::new()
    }
    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }
    fn expressions(&self) -> Vec<Expr> {
        vec![self.items.clone()]
    }
    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Unnest: {}", self.items)
    }
    fn with_exprs_and_inputs(
        &self,
        mut exprs: Vec<Expr>,
        _: Vec<LogicalPlan>,
    ) -> Result<Self, DataFusionError> {
        let items = exprs.pop().ok_or_else(|| carried(Error::internal("UNNEST has one expression")))?;
        Ok(Self { items, ..self.clone() })
    }
}

impl PartialOrd for Unnest {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.input.partial_cmp(&other.input)
    }
}

impl UserDefinedLogicalNodeCore for Unnest {
    fn name(&self) -> &str {
        "Unnest"
    }
    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }
    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }
    fn expressions(&self) -> Vec<Expr> {
        vec![self.items.clone()]
    }
    fn prevent_predicate_push_down_columns(&self) -> HashSet<String> {
        // Of an outer one no condition may go below: it would drop rows, which are then not kept.
        let kept = if self.outer { 0 } else { self.width() };
        self.schema.fields()[kept..].iter().map(|field| field.name().clone()).collect()
    }
    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Unnest: {}", self.items)
    }
    fn with_exprs_and_inputs(
        &self,
        mut exprs: Vec<Expr>,
        mut inputs: Vec<LogicalPlan>,
    ) -> Result<Self, DataFusionError> {
        match (exprs.pop(), inputs.pop()) {
            (Some(items), Some(input)) => {
                Self::try_new(input, items, self.outer, self.ordinality, &self.item_fields())
            }
            _ => Err(carried(Error::internal("Unnest has one input and one expression"))),
        }
    }
    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        let width = self.width();
        let mut columns: Vec<usize> =
            output_columns.iter().copied().filter(|column| *column < width).collect();
        let input = self.input.schema();
        let read = |column: &Column| input.index_of_column(column).ok();
        columns.extend(self.items.column_refs().into_iter().filter_map(read));
        columns.sort_unstable();
        columns.dedup();
        Some(vec![columns])
    }
}
