//! Joins.
//!
//! Both inputs are spread by the join key. A condition between the inputs' times says how long
//! rows are kept; without one the join keeps them all, and its state grows with its input.
//!
//! ```text
//! right semi, anti, mark    as left ones, with the inputs exchanged
//! left mark                 semi join with TRUE beside its rows  ∪  anti join with FALSE
//! ```

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::Field;
use datafusion::common::{DFSchema, DFSchemaRef, NullEquality};
use datafusion::logical_expr::{
    Expr, ExprSchemable, Join, JoinType, LogicalPlan, LogicalPlanBuilder, Projection, lit,
};
use millpond_core::{ChangelogMode, Error, Result};
use millpond_operators::join::{JoinFactory, JoinKind, JoinRetention, SideRetention};

use super::calc::{changing_value, volatile_function};
use super::rank::ttl_text;
use super::{Chooser, NodeFacts, Operator};
use crate::interval::{Interval, Sides, interval};
use crate::plan_error::from_datafusion;
use crate::properties::{Role, Windows, joint_mode};
use crate::stream_plan::{NodeId, StateBound};
use crate::subquery::AT_MOST_ONE;
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
        match join.join_type {
            JoinType::Inner => self.join_of(join, JoinKind::Inner),
            JoinType::Left => self.join_of(join, JoinKind::Left),
            JoinType::Right => self.join_of(join, JoinKind::Right),
            JoinType::Full => self.join_of(join, JoinKind::Full),
            JoinType::LeftSemi => self.join_of(join, JoinKind::Semi),
            JoinType::LeftAnti if join.null_aware => {
                Err(Error::internal("a NOT IN has become a join before its NULLs were seen to"))
            }
            JoinType::LeftAnti => self.join_of(join, JoinKind::Anti),
            JoinType::LeftMark => self.choose(&marked(join)?),
            JoinType::RightSemi => self.join(&exchanged(join, JoinType::LeftSemi)?),
            JoinType::RightAnti => self.join(&exchanged(join, JoinType::LeftAnti)?),
            JoinType::RightMark => self.join(&exchanged(join, JoinType::LeftMark)?),
        }
    }

    fn join_of(&mut self, join: &Join, kind: JoinKind) -> Result<NodeId> {
        let (left_keys, right_keys): (Vec<Expr>, Vec<Expr>) = join.on.iter().cloned().unzip();
        let left = self.choose(&join.left)?;
        let right = self.choose(&join.right)?;
        let left = self.join_input(left, join.left.schema(), &left_keys, "left")?;
        let right = self.join_input(right, join.right.schema(), &right_keys, "right")?;
        let interval = self.interval(join, left.node, right.node);
        self.add_join(join, kind, left, right, interval)
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
            return Ok(JoinInput { node, schema: self.with_unasked(node, schema, side)?, keys, width });
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

    /// The schema with the columns that a node has though nobody asked for them: where none is wanted,
    /// rows come as they are.
    fn with_unasked(&self, node: NodeId, schema: &DFSchemaRef, side: &str) -> Result<DFSchemaRef> {
        let unasked = self.node(node).schema.fields().iter().enumerate().skip(schema.fields().len());
        let unasked: Vec<_> = unasked
            .map(|(place, field)| {
                (None, Arc::new(field.as_ref().clone().with_name(format!("${side}_unasked{place}"))))
            })
            .collect();
        if unasked.is_empty() {
            return Ok(Arc::clone(schema));
        }
        let own = schema.iter().map(|(table, field)| (table.cloned(), Arc::clone(field)));
        let fields = own.chain(unasked).collect();
        Ok(Arc::new(DFSchema::new_with_metadata(fields, HashMap::new()).map_err(from_datafusion)?))
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
        kind: JoinKind,
        left: JoinInput,
        right: JoinInput,
        interval: Option<Interval>,
    ) -> Result<NodeId> {
        // Rows without a partner are final only where their own time is bounded.
        let interval = interval.filter(|bounds| {
            let (lefts, rights) = kind.keeps_unmatched();
            let counts_left = lefts || kind == JoinKind::Semi;
            (!counts_left || bounds.lower.is_some()) && (!rights || bounds.upper.is_some())
        });
        let joined = left.schema.join(&right.schema).map_err(from_datafusion)?;
        let filter = join.filter.as_ref().map(|filter| self.session.physical(filter, &joined)).transpose()?;
        let changing = self.updated_by(left.node).or(self.updated_by(right.node)).or(clause(kind));
        if let (Some(clause), Some(function)) = (changing, filter.as_ref().and_then(volatile_function)) {
            return Err(changing_value(&function, clause));
        }
        let shift = left.schema.fields().len();
        let right_width = if kind.shows_pairs() { right.width } else { 0 };
        let output: Vec<usize> =
            (0..left.width).chain((0..right_width).map(|column| shift + column)).collect();
        let single = left.keys.is_empty();
        let at_most_one = gives_at_most_one(&join.right);
        let retention = self.retention(&left, &right, interval);
        let ttl = match retention == JoinRetention::default() {
            true => self.join_ttl(kind, join, single)?,
            false => [None; 2],
        };
        let spread = joined_spread(kind, &left, &right);
        let mut roles = self.join_roles(kind, &left, &right, interval);
        roles.truncate(output.len());
        let upsert_keys = self.join_keys(kind, &left, &right);
        let (left_mode, right_mode) = (self.mode(left.node), self.mode(right.node));
        let (mode, updated_by) = match joint_mode([left_mode, right_mode]) {
            ChangelogMode::Append if !kind.appends(retention) => (ChangelogMode::Retract, clause(kind)),
            mode => (mode, self.updated_by(left.node).or(self.updated_by(right.node))),
        };
        let left_exchange = self.exchange(left.node, left.keys.clone());
        let right_exchange = self.exchange(right.node, right.keys.clone());
        let operator = Operator {
            semantics: format!(
                "{}{}{:?} = {:?} {} {output:?} {interval:?}{}",
                kind_text(kind),
                if at_most_one { "scalar " } else { "" },
                left.keys,
                right.keys,
                super::calc::texts(filter.as_slice()),
                ttl.map(ttl_text).join(if ttl == [None; 2] { "" } else { "," })
            ),
            state: match ttl {
                [Some(left), Some(right)] if left == right => StateBound::Ttl(seconds(left)),
                [Some(left), Some(right)] => {
                    StateBound::Ttl(format!("{}; {}", seconds(left), seconds(right)))
                }
                [None, _] | [_, None] => self.join_bound(left_exchange, right_exchange, interval),
            },
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
                kind,
                at_most_one,
                ttl,
            }),
            inputs: vec![left_exchange, right_exchange],
            mode,
            upsert_keys,
            facts: NodeFacts { updated_by, ..NodeFacts::new(roles, single) },
            identity: None,
        };
        let id = self.add_operator(operator);
        self.spread_by(id, spread);
        Ok(id)
    }

    /// How long the rows of each side are kept. What counts partners forgets whole keys.
    fn join_ttl(&mut self, kind: JoinKind, join: &Join, single: bool) -> Result<[Option<i64>; 2]> {
        let [left, right] = [self.ttl_of(&join.left), self.ttl_of(&join.right)];
        Ok(match kind {
            JoinKind::Inner => [left, right],
            _ if single => [None; 2],
            _ => [left.zip(right).map(|(left, right)| left.max(right)); 2],
        })
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
    fn join_roles(
        &self,
        kind: JoinKind,
        left: &JoinInput,
        right: &JoinInput,
        interval: Option<Interval>,
    ) -> Vec<Role> {
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
        // NULL, beside a row without a partner, is no time.
        let (lefts, rights) = kind.keeps_unmatched();
        let present = |column: usize| if column < left.width { !rights } else { !lefts };
        let kept = |(column, role)| if present(column) { kept((column, role)) } else { Role::Plain };
        roles.into_iter().enumerate().map(kept).collect()
    }

    /// What identifies a joined row: a key of each side, or of one side if it finds at most one
    /// partner. Beside a row without a partner, the other side's key is NULL and says nothing.
    fn join_keys(&self, kind: JoinKind, left: &JoinInput, right: &JoinInput) -> Vec<Vec<usize>> {
        let known = |input: &JoinInput| &self.node(input.node).properties.upsert_keys;
        // Columns beyond the input's own are not in the output.
        let keys = |input: &JoinInput| -> Vec<Vec<usize>> {
            let shown = |key: &&Vec<usize>| key.iter().all(|column| *column < input.width);
            known(input).iter().filter(shown).cloned().collect()
        };
        if !kind.shows_pairs() {
            return keys(left);
        }
        let (lefts, rights) = kind.keeps_unmatched();
        let unique =
            |input: &JoinInput| known(input).iter().any(|key| key.iter().all(|c| input.keys.contains(c)));
        let shifted = |key: &Vec<usize>| key.iter().map(|column| column + left.width).collect::<Vec<usize>>();
        let (left_keys, right_keys) = (keys(left), keys(right).iter().map(shifted).collect::<Vec<_>>());
        let (by_left, by_right) = (unique(right) && !rights, unique(left) && !lefts);
        match (by_left, by_right) {
            (true, true) => left_keys.into_iter().chain(right_keys).collect(),
            (true, false) => left_keys,
            (false, true) => right_keys,
            // Rows of both sides without a partner could share NULLs.
            (false, false) if lefts && rights => Vec::new(),
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
        // Rows that replace each other are as many as their keys.
        let keyed = |node: NodeId| {
            let properties = &self.node(node).properties;
            let key = (properties.mode != ChangelogMode::Append).then(|| properties.upsert_keys.first())?;
            let columns: Vec<String> = key?.iter().map(|column| name(node, *column)).collect();
            Some(if columns.is_empty() { "one row".into() } else { columns.join(", ") })
        };
        let Some(interval) = interval else {
            return match (keyed(left), keyed(right)) {
                (Some(left), Some(right)) => StateBound::Keys(format!("{left}; {right}")),
                (None, Some(_)) => open("left input"),
                (Some(_), None) => open("right input"),
                (None, None) => open("inputs"),
            };
        };
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

/// Whether the rows are a scalar subquery's.
fn gives_at_most_one(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::SubqueryAlias(alias) => alias.alias.table().starts_with(AT_MOST_ONE),
        LogicalPlan::Projection(projection) => gives_at_most_one(&projection.input),
        LogicalPlan::Filter(filter) => gives_at_most_one(&filter.input),
        _ => false,
    }
}

/// By which columns of the output its rows are spread: a side's key, where it is never NULL for want
/// of a partner.
fn joined_spread(kind: JoinKind, left: &JoinInput, right: &JoinInput) -> Vec<Vec<usize>> {
    let (lefts, rights) = kind.keeps_unmatched();
    let visible = |input: &JoinInput| input.keys.iter().all(|key| *key < input.width);
    let mut spread = Vec::new();
    if !rights && visible(left) {
        spread.push(left.keys.clone());
    }
    if !lefts && kind.shows_pairs() && visible(right) {
        spread.push(right.keys.iter().map(|key| key + left.width).collect());
    }
    spread
}

/// The kind of a join in what makes an operator what it is.
fn kind_text(kind: JoinKind) -> String {
    if kind == JoinKind::Inner { String::new() } else { format!("{} ", kind.name()) }
}

/// What makes a join of appended rows change its output.
fn clause(kind: JoinKind) -> Option<&'static str> {
    match kind {
        JoinKind::Inner => None,
        JoinKind::Left => Some("LEFT JOIN"),
        JoinKind::Right => Some("RIGHT JOIN"),
        JoinKind::Full => Some("FULL JOIN"),
        JoinKind::Semi => Some("IN or EXISTS"),
        JoinKind::Anti => Some("NOT IN, NOT EXISTS or EXCEPT"),
    }
}

/// The join with its inputs exchanged.
fn exchanged(join: &Join, join_type: JoinType) -> Result<Join> {
    let on = join.on.iter().map(|(left, right)| (right.clone(), left.clone())).collect();
    joined(join, Arc::clone(&join.right), Arc::clone(&join.left), on, join_type)
}

fn joined(
    join: &Join,
    left: Arc<LogicalPlan>,
    right: Arc<LogicalPlan>,
    on: Vec<(Expr, Expr)>,
    join_type: JoinType,
) -> Result<Join> {
    let (filter, constraint) = (join.filter.clone(), join.join_constraint);
    Join::try_new(left, right, on, filter, join_type, constraint, join.null_equality, join.null_aware)
        .map_err(from_datafusion)
}

/// A mark join as the rows with a partner, marked TRUE, and those without, marked FALSE.
fn marked(join: &Join) -> Result<LogicalPlan> {
    let of = |join_type: JoinType, mark: bool| -> Result<LogicalPlan> {
        let rows = joined(join, Arc::clone(&join.left), Arc::clone(&join.right), join.on.clone(), join_type)?;
        let rows = LogicalPlan::Join(rows);
        let exprs = rows.schema().columns().into_iter().map(Expr::Column).chain([lit(mark)]).collect();
        let marked = Projection::try_new_with_schema(exprs, Arc::new(rows), Arc::clone(&join.schema));
        Ok(LogicalPlan::Projection(marked.map_err(from_datafusion)?))
    };
    LogicalPlanBuilder::from(of(JoinType::LeftSemi, true)?)
        .union(of(JoinType::LeftAnti, false)?)
        .and_then(LogicalPlanBuilder::build)
        .map_err(from_datafusion)
}

fn shift(micros: i64) -> String {
    match micros {
        0 => String::new(),
        1.. => format!(" + {}", seconds(micros)),
        _ => format!(" - {}", seconds(-micros)),
    }
}
