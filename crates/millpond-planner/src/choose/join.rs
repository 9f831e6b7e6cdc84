//! Inner joins of appended rows.
//!
//! Both inputs are spread by the join key. A condition between the inputs' times says how long
//! rows are kept; without one the join keeps them all, and its state grows with its input.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::{DFSchema, DFSchemaRef, NullEquality};
use datafusion::logical_expr::{Expr, ExprSchemable, Join};
use arrow::datatypes::Field;
use millpond_core::{ChangelogMode, Result};
use millpond_operators::join::JoinFactory;

use super::{Chooser, NodeFacts, Operator};
use crate::interval::{Interval, Sides, interval};
use crate::plan_error::{from_datafusion, unsupported};
use crate::properties::Role;
use crate::stream_plan::{NodeId, StateBound};
use crate::window_relation::seconds;

/// One input of a join: its rows with the key's columns.
struct JoinInput {
    node: NodeId,
    schema: DFSchemaRef,
    keys: Vec<usize>,
    /// How many of its columns are in the join's output.
    width: usize,
}

impl Chooser<'_> {
    pub(super) fn join(&mut self, join: &Join) -> Result<NodeId> {
        if join.null_equality == NullEquality::NullEqualsNull && !join.on.is_empty() {
            return Err(unsupported("a join by IS NOT DISTINCT FROM"));
        }
        let (left_keys, right_keys): (Vec<Expr>, Vec<Expr>) = join.on.iter().cloned().unzip();
        let left = self.choose(&join.left)?;
        let right = self.choose(&join.right)?;
        self.refuse_changes(left, right)?;
        let left = self.join_input(left, join.left.schema(), &left_keys, "left")?;
        let right = self.join_input(right, join.right.schema(), &right_keys, "right")?;
        let interval = self.interval(join, left.node, right.node);
        self.add_join(join, left, right, interval)
    }

    fn refuse_changes(&self, left: NodeId, right: NodeId) -> Result<()> {
        match self.updated_by(left).or(self.updated_by(right)) {
            None => Ok(()),
            Some(clause) => Err(unsupported(format!("a join of rows that {clause} changes"))),
        }
    }

    /// The input with a column for each key, behind its own columns.
    fn join_input(&mut self, node: NodeId, schema: &DFSchemaRef, keys: &[Expr], side: &str) -> Result<JoinInput> {
        let width = schema.fields().len();
        let plain: Option<Vec<usize>> = keys.iter().map(|key| super::column_index(schema, key)).collect();
        if let Some(keys) = plain {
            return Ok(JoinInput { node, schema: Arc::clone(schema), keys, width });
        }
        let mut fields: Vec<_> = schema.iter().map(|(table, field)| (table.cloned(), Arc::clone(field))).collect();
        for (number, key) in keys.iter().enumerate() {
            let data_type = key.get_type(schema.as_ref()).map_err(from_datafusion)?;
            fields.push((None, Arc::new(Field::new(format!("${side}_key{number}"), data_type, true))));
        }
        let extended = DFSchema::new_with_metadata(fields, HashMap::new()).map_err(from_datafusion)?;
        let own = schema.columns().into_iter().map(Expr::Column);
        let exprs: Vec<Expr> = own.chain(keys.iter().cloned()).collect();
        let node = self.calc(node, schema, &exprs, None, Arc::clone(extended.inner()))?;
        Ok(JoinInput { node, schema: Arc::new(extended), keys: (width..width + keys.len()).collect(), width })
    }

    fn interval(&self, join: &Join, left: NodeId, right: NodeId) -> Option<Interval> {
        let follows = |node: NodeId| move |column: usize| self.facts[node].roles[column].follows_watermark();
        let sides = Sides {
            left: join.left.schema(),
            right: join.right.schema(),
            left_follows: &follows(left),
            right_follows: &follows(right),
        };
        interval(&sides, &join.on, join.filter.as_ref())
    }

    fn add_join(
        &mut self,
        join: &Join,
        left: JoinInput,
        right: JoinInput,
        interval: Option<Interval>,
    ) -> Result<NodeId> {
        let joined = left.schema.join(&right.schema).map_err(from_datafusion)?;
        let filter = join.filter.as_ref().map(|filter| self.session.physical(filter, &joined)).transpose()?;
        let shift = left.schema.fields().len();
        let output: Vec<usize> = (0..left.width).chain((0..right.width).map(|column| shift + column)).collect();
        let single = left.keys.is_empty();
        let roles = self.join_roles(&left, &right, interval);
        let left_exchange = self.exchange(left.node, left.keys.clone());
        let right_exchange = self.exchange(right.node, right.keys.clone());
        let operator = Operator {
            semantics: format!(
                "{:?} = {:?} {} {output:?} {interval:?}",
                left.keys,
                right.keys,
                super::calc::texts(filter.as_slice())
            ),
            state: self.join_bound(left_exchange, right_exchange, interval),
            factory: Arc::new(JoinFactory {
                left_schema: Arc::clone(&self.node(left_exchange).schema),
                right_schema: Arc::clone(&self.node(right_exchange).schema),
                left_keys: left.keys,
                right_keys: right.keys,
                filter,
                output,
                schema: Arc::clone(join.schema.inner()),
                retention: None,
            }),
            inputs: vec![left_exchange, right_exchange],
            mode: ChangelogMode::Append,
            upsert_keys: Vec::new(),
            facts: NodeFacts::new(roles, single),
            identity: None,
        };
        Ok(self.add_operator(operator))
    }

    /// Joined rows of equal windows appear before the watermark passes the windows' end; any other
    /// join may emit rows whose times lie behind it.
    fn join_roles(&self, left: &JoinInput, right: &JoinInput, interval: Option<Interval>) -> Vec<Role> {
        let of = |input: &JoinInput| self.facts[input.node].roles[..input.width].to_vec();
        let (left_roles, right_roles) = (of(left), of(right));
        let same_window = interval.filter(|interval| interval.lower == Some(0) && interval.upper == Some(0)).and_then(
            |interval| {
                let window = left_roles[interval.left].window()?;
                (right_roles[interval.right].window() == Some(window)).then_some(window)
            },
        );
        let kept = |role: Role| match same_window {
            Some(window) if role.window() == Some(window) => role,
            Some(_) | None => Role::Plain,
        };
        left_roles.into_iter().chain(right_roles).map(kept).collect()
    }

    fn join_bound(&self, left: NodeId, right: NodeId, interval: Option<Interval>) -> StateBound {
        let name = |node: NodeId, column: usize| self.node(node).schema.field(column).name().clone();
        let open = |side: &str| {
            StateBound::Unbounded(format!("the join keeps all rows of its {side}: no condition bounds their time"))
        };
        let Some(interval) = interval else { return open("inputs") };
        match (interval.lower, interval.upper) {
            (Some(lower), Some(upper)) => StateBound::Watermark(format!(
                "{} between {} {} and {}",
                name(left, interval.left),
                name(right, interval.right),
                shift(lower),
                shift(upper)
            )),
            (None, _) => open("left input"),
            (_, None) => open("right input"),
        }
    }
}

fn shift(micros: i64) -> String {
    let sign = if micros < 0 { '-' } else { '+' };
    format!("{sign} {}", seconds(micros.abs()))
}
