//! GROUPING SETS by windows: as many aggregations by window, side by side.
//!
//! Each set groups by the window and some keys; the other keys are NULL. The sets share everything
//! beneath them, since equal nodes of the plan are one.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::{Aggregate, Expr, GroupingSet, LogicalPlan, Projection, Union, cast, lit};
use millpond_core::Result;

use super::Chooser;
use crate::plan_error::from_datafusion;
use crate::stream_plan::NodeId;

impl Chooser<'_> {
    /// The sets, if each of them groups by the window of appended rows.
    pub(super) fn windowed_sets(
        &mut self,
        aggregate: &Aggregate,
        sets: &GroupingSet,
    ) -> Result<Option<NodeId>> {
        let GroupingSet::GroupingSets(groups) = sets else { return Ok(None) };
        let input = self.choose(&aggregate.input)?;
        let schema = aggregate.input.schema();
        let by_window = |set: &Vec<Expr>| {
            self.group_roles(input, schema, set).iter().any(|role| role.windows().is_some())
        };
        if !self.is_append(input) || !groups.iter().all(by_window) {
            return Ok(None);
        }
        let columns: Vec<Expr> = sets.distinct_expr().into_iter().cloned().collect();
        let mut branches = Vec::new();
        for (place, set) in groups.iter().enumerate() {
            let twins = groups[..place].iter().filter(|other| *other == set).count();
            branches.push(Arc::new(branch(aggregate, &columns, set, twins)?));
        }
        let union = Union::try_new_with_loose_types(branches).map_err(from_datafusion)?;
        self.union(&union).map(Some)
    }
}

/// One set: its aggregation, with NULL for the keys that it leaves out and its number.
fn branch(aggregate: &Aggregate, columns: &[Expr], set: &[Expr], twins: usize) -> Result<LogicalPlan> {
    let grouped = Aggregate::try_new(Arc::clone(&aggregate.input), set.to_vec(), aggregate.aggr_expr.clone())
        .map_err(from_datafusion)?;
    let results = grouped.schema.columns();
    let mut exprs = Vec::new();
    // A bit per column that is left out, the last column's lowest; above them, which of several
    // equal sets it is.
    let mut number = twins as u64;
    for (column, field) in columns.iter().zip(aggregate.schema.fields()) {
        let place = set.iter().position(|key| key == column);
        number = number << 1 | u64::from(place.is_none());
        exprs.push(match place {
            Some(place) => Expr::Column(results[place].clone()),
            None => Expr::Literal(null(field.data_type())?, None),
        });
    }
    exprs.push(cast(lit(number), aggregate.schema.field(columns.len()).data_type().clone()));
    exprs.extend(results[set.len()..].iter().cloned().map(Expr::Column));
    let named = exprs.into_iter().zip(aggregate.schema.iter());
    let exprs = named.map(|(expr, (table, field))| expr.alias_qualified(table.cloned(), field.name()));
    let projection = Projection::try_new(exprs.collect(), Arc::new(LogicalPlan::Aggregate(grouped)))
        .map_err(from_datafusion)?;
    Ok(LogicalPlan::Projection(projection))
}

fn null(data_type: &DataType) -> Result<ScalarValue> {
    ScalarValue::try_from(data_type).map_err(from_datafusion)
}
