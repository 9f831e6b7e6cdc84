//! Inner joins.
//!
//! Both inputs are spread by the join key. A condition between the inputs' times says how long
//! rows are kept; without one the join keeps them all, and its state grows with its input.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::Field;
use datafusion::common::{DFSchema, DFSchemaRef, NullEquality};
use datafusion::logical_expr::{Expr, ExprSchemable, Join};
use millpond_core::Result;
use millpond_operators::join::{JoinFactory, JoinRetention, SideRetention};

use super::{Chooser, NodeFacts, Operator};
use crate::interval::{Interval, Sides, interval};
use crate::plan_error::from_datafusion;
use crate::properties::{Role, Windows, joint_mode};
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
        let (left_keys, right_keys): (Vec<Expr>, Vec<Expr>) = join.on.iter().cloned().unzip();
        let left = self.choose(&join.left)?;
        let right = self.choose(&join.right)?;
        let left = self.join_input(left, join.left.schema(), &left_keys, "left")?;
        let right = self.join_input(right, join.right.schema(), &right_keys, "right")?;
        let interval = self.interval(join, left.node, right.node);
        self.add_join(join, left, right, interval)
    }

    /// The input with a column for each key, behind its own columns.
    fn join_input(
        &mut self,
        node: NodeId,
        schema: &DFSchemaRef,
        keys: &[Expr],
        side: &str,
    ) -> Result<JoinInput> {
        let width = schema.fields().len();
        let plain: Option<Vec<usize>> = keys.iter().map(|key| super::column_index(schema, key)).collect();
        if let Some(keys) = plain {
            return Ok(JoinInput { node, schema: Arc::clone(schema), keys, width });
        }
        let mut fields: Vec<_> =
            schema.iter().map(|(table, field)| (table.cloned(), Arc::clone(field))).collect();
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

    /// A bound between the times of the inputs; none if rows may be taken back, however late.
    fn interval(&self, join: &Join, left: NodeId, right: NodeId) -> Option<Interval> {
        if !self.is_append(left) || !self.is_append(right) {
            return None;
        }
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
        let output: Vec<usize> =
            (0..left.width).chain((0..right.width).map(|column| shift + column)).collect();
        let single = left.keys.is_empty();
        let retention = self.retention(&left, &right, interval);
        let roles = self.join_roles(&left, &right, interval);
        let upsert_keys = self.join_keys(&left, &right);
        let updated_by = self.updated_by(left.node).or(self.updated_by(right.node));
        let (left_mode, right_mode) = (self.mode(left.node), self.mode(right.node));
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
                null_equals_null: join.null_equality == NullEquality::NullEqualsNull,
                left_mode,
                right_mode,
                retention,
            }),
            inputs: vec![left_exchange, right_exchange],
            mode: joint_mode([left_mode, right_mode]),
            upsert_keys,
            facts: NodeFacts { updated_by, ..NodeFacts::new(roles, single) },
            identity: None,
        };
        Ok(self.add_operator(operator))
    }

    /// The windows that the join pairs by their ends.
    fn joined_window(&self, left: &JoinInput, right: &JoinInput, interval: Interval) -> Option<Windows> {
        let ends = (self.facts[left.node].roles[interval.left], self.facts[right.node].roles[interval.right]);
        match ends {
            (Role::WindowEnd(a), Role::WindowEnd(b)) if a == b && interval.is_equality() => Some(a),
            _ => None,
        }
    }

    fn retention(&self, left: &JoinInput, right: &JoinInput, interval: Option<Interval>) -> JoinRetention {
        let Some(interval) = interval else { return JoinRetention::default() };
        let (left_column, right_column) = (interval.left, interval.right);
        if self.joined_window(left, right, interval).is_some() {
            return JoinRetention {
                left: Some(SideRetention::Window { column: left_column }),
                right: Some(SideRetention::Window { column: right_column }),
            };
        }
        let side = |column: usize, keep: i64| SideRetention::Interval { column, keep };
        JoinRetention {
            left: interval.lower.map(|lower| side(left_column, -lower)),
            right: interval.upper.map(|upper| side(right_column, upper)),
        }
    }

    /// The join holds its watermark back, so that the times that bound it stay time attributes;
    /// joined windows stay windows. Any other time may lie behind the watermark.
    fn join_roles(&self, left: &JoinInput, right: &JoinInput, interval: Option<Interval>) -> Vec<Role> {
        let of = |input: &JoinInput| self.facts[input.node].roles[..input.width].to_vec();
        let roles: Vec<Role> = of(left).into_iter().chain(of(right)).collect();
        let closed = interval.filter(Interval::is_closed);
        let window = closed.and_then(|interval| self.joined_window(left, right, interval));
        let kept = |(column, role): (usize, Role)| match (closed, window) {
            (_, Some(window)) if role.windows() == Some(window) => role,
            (Some(interval), None) if column == interval.left || column == left.width + interval.right => {
                role
            }
            _ => Role::Plain,
        };
        roles.into_iter().enumerate().map(kept).collect()
    }

    /// What identifies a joined row: a key of each side, or of one side if it finds at most one
    /// partner.
    fn join_keys(&self, left: &JoinInput, right: &JoinInput) -> Vec<Vec<usize>> {
        let keys = |input: &JoinInput| self.node(input.node).properties.upsert_keys.clone();
        let unique =
            |input: &JoinInput| keys(input).iter().any(|key| key.iter().all(|c| input.keys.contains(c)));
        let shifted = |key: &Vec<usize>| key.iter().map(|column| column + left.width).collect::<Vec<usize>>();
        let (left_keys, right_keys) = (keys(left), keys(right).iter().map(shifted).collect::<Vec<_>>());
        match (unique(left), unique(right)) {
            (true, true) => left_keys.into_iter().chain(right_keys).collect(),
            (false, true) => left_keys,
            (true, false) => right_keys,
            (false, false) => {
                let both = |a: &Vec<usize>, b: &Vec<usize>| a.iter().chain(b).copied().collect();
                left_keys.iter().flat_map(|a| right_keys.iter().map(move |b| both(a, b))).collect()
            }
        }
    }

    fn join_bound(&self, left: NodeId, right: NodeId, interval: Option<Interval>) -> StateBound {
        let name = |node: NodeId, column: usize| self.node(node).schema.field(column).name().clone();
        let open = |side: &str| {
            StateBound::Unbounded(format!(
                "the join keeps all rows of its {side}: no condition bounds their time"
            ))
        };
        let Some(interval) = interval else { return open("inputs") };
        match (interval.lower, interval.upper) {
            (Some(lower), Some(upper)) => StateBound::Watermark(format!(
                "{} from {}{} to {1}{}",
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
    match micros {
        0 => String::new(),
        1.. => format!(" + {}", seconds(micros)),
        _ => format!(" - {}", seconds(-micros)),
    }
}
