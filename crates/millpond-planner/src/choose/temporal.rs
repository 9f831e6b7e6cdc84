//! Temporal filters: conditions between a row's time and NOW(), so that rows come and go as time
//! passes.
//!
//! `E op NOW() ± c`, where E is made of the row's columns; several of them joined by AND. Any other
//! use of NOW() in a filter would be judged only once, as the row comes, and is refused:
//! CURRENT_ROW_TIMESTAMP() says that this is meant.

use std::sync::Arc;

use arrow::datatypes::{DataType, Schema, TimeUnit};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchemaRef, ScalarValue};
use datafusion::logical_expr::utils::{conjunction, split_conjunction};
use datafusion::logical_expr::{Expr, Filter, Operator as BinaryOperator};
use millpond_core::{ChangelogMode, Result};
use millpond_operators::temporal_filter::{TemporalFilterFactory, TimeBound, TimeComparison};

use super::{Chooser, NodeFacts, Operator};
use crate::plan_error::{from_datafusion, unsupported};
use crate::properties::Role;
use crate::stream_plan::{NodeId, StateBound};

/// Functions that mean the current time, whenever that is.
const NOW: [&str; 3] = ["now", "localtimestamp", "current_date"];

/// Microseconds of a day.
const DAY: i64 = 86_400_000_000;

/// `expr comparison now + shift`.
struct Condition {
    expr: Expr,
    comparison: TimeComparison,
    now: Now,
}

/// The current time, cut to a unit, and what is added; in microseconds.
#[derive(Debug, Clone, Copy)]
struct Now {
    shift: i64,
    unit: i64,
}

impl Chooser<'_> {
    /// The input of a filter without the rows whose time has not come or is over, and the rest of
    /// the filter, if that is still to be applied.
    pub(super) fn timely(&mut self, filter: &Filter) -> Result<(NodeId, Option<Expr>)> {
        let mut conditions = Vec::new();
        let mut rest = Vec::new();
        for conjunct in split_conjunction(&filter.predicate) {
            match Condition::of(conjunct) {
                Some(condition) => conditions.push(condition),
                None if reads_now(conjunct) && !conjunct.column_refs().is_empty() => {
                    return Err(refused());
                }
                None => rest.push(conjunct.clone()),
            }
        }
        let input = self.choose(&filter.input)?;
        let rest = conjunction(rest);
        if conditions.is_empty() {
            return Ok((input, rest));
        }
        let schema = filter.input.schema();
        let input = match rest {
            Some(rest) => {
                let own: Vec<Expr> = schema.columns().into_iter().map(Expr::Column).collect();
                self.calc(input, schema, &own, Some(&rest), Arc::clone(schema.inner()))?
            }
            None => input,
        };
        Ok((self.temporal_filter(input, schema, &conditions)?, None))
    }

    fn temporal_filter(
        &mut self,
        input: NodeId,
        schema: &DFSchemaRef,
        conditions: &[Condition],
    ) -> Result<NodeId> {
        let width = schema.fields().len();
        let exprs: Vec<Expr> = conditions.iter().map(|condition| condition.expr.clone()).collect();
        let (node, columns) = self.with_columns(input, schema, &exprs)?;
        let before = &self.node(node).properties;
        let (mode, keys) = (before.mode, before.upsert_keys.clone());
        let keys: Vec<Vec<usize>> =
            keys.into_iter().filter(|key| key.iter().all(|column| *column < width)).collect();
        // Changes of one row must meet: they have a key in common or, without one, their time.
        let spread = match (mode, keys.first()) {
            (ChangelogMode::Retract, Some(key)) => key.clone(),
            _ => vec![columns[0]],
        };
        let exchange = self.exchange(node, spread.clone());
        let given = Arc::clone(&self.node(exchange).schema);
        let bounds: Vec<TimeBound> = conditions
            .iter()
            .zip(&columns)
            .map(|(condition, column)| TimeBound {
                column: *column,
                comparison: condition.comparison,
                shift: condition.now.shift,
                unit: condition.now.unit,
            })
            .collect();
        let leave = |bound: &TimeBound| {
            !matches!(bound.comparison, TimeComparison::Before | TimeComparison::AtOrBefore)
        };
        let leaves = bounds.iter().any(leave);
        let appends = mode == ChangelogMode::Append && !leaves;
        let schema = Arc::new(Schema::new(given.fields()[..width].to_vec()));
        let time = given.field(columns[0]).name();
        let state = match (mode, leaves) {
            (_, true) | (ChangelogMode::Append, false) => StateBound::Time(time.clone()),
            (ChangelogMode::Retract | ChangelogMode::Upsert, false) => {
                StateBound::Unbounded("rows that change are kept while they are part of the relation".into())
            }
        };
        let operator = Operator {
            semantics: format!("{bounds:?} {spread:?}"),
            identity: None,
            mode: if appends { ChangelogMode::Append } else { ChangelogMode::Retract },
            upsert_keys: keys,
            state,
            facts: NodeFacts {
                updated_by: (!appends).then_some("a condition on the current time"),
                ..NodeFacts::new(vec![Role::Plain; width], spread.is_empty())
            },
            inputs: vec![exchange],
            factory: Arc::new(TemporalFilterFactory {
                bounds,
                key: spread,
                output: (0..width).collect(),
                input_schema: given,
                schema,
                input_mode: mode,
            }),
        };
        Ok(self.add_operator(operator))
    }
}

fn refused() -> millpond_core::Error {
    unsupported("NOW() in a condition that is not a comparison of a time with NOW() plus or minus an interval")
        .with_hint(
            "write ts > NOW() - INTERVAL '1' HOUR, joined by AND; CURRENT_ROW_TIMESTAMP() is the time at which a row came",
        )
}

/// Whether the expression reads the current time.
fn reads_now(expr: &Expr) -> bool {
    let mut found = false;
    let visited = expr.apply(|node| {
        found |= matches!(node, Expr::ScalarFunction(call) if NOW.contains(&call.func.name()));
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    found || visited.map_err(from_datafusion).is_err()
}

impl Condition {
    fn of(expr: &Expr) -> Option<Self> {
        let Expr::BinaryExpr(binary) = expr else { return None };
        let (expr, op, now) = match (reads_now(&binary.left), reads_now(&binary.right)) {
            (false, true) => (&binary.left, binary.op, Now::of(&binary.right)?),
            (true, false) => (&binary.right, binary.op.swap()?, Now::of(&binary.left)?),
            (true, true) | (false, false) => return None,
        };
        if expr.column_refs().is_empty() || expr.is_volatile() {
            return None;
        }
        let comparison = match op {
            BinaryOperator::Lt => TimeComparison::Before,
            BinaryOperator::LtEq => TimeComparison::AtOrBefore,
            BinaryOperator::Gt => TimeComparison::After,
            BinaryOperator::GtEq => TimeComparison::AtOrAfter,
            BinaryOperator::Eq => TimeComparison::At,
            _ => return None,
        };
        Some(Self { expr: expr.as_ref().clone(), comparison, now })
    }
}

impl Now {
    fn of(expr: &Expr) -> Option<Self> {
        match expr {
            Expr::Alias(alias) => Self::of(&alias.expr),
            Expr::ScalarFunction(call) => match call.func.name() {
                "now" | "localtimestamp" => Some(Self { shift: 0, unit: 1000 }),
                "current_date" => Some(Self { shift: 0, unit: DAY }),
                _ => None,
            },
            Expr::Cast(cast) => {
                let inner = Self::of(&cast.expr)?;
                match cast.field.data_type() {
                    DataType::Timestamp(TimeUnit::Second, _) => inner.cut_to(1_000_000),
                    DataType::Timestamp(_, _) => Some(inner),
                    _ => None,
                }
            }
            Expr::BinaryExpr(binary) => {
                let sign = match binary.op {
                    BinaryOperator::Plus => 1,
                    BinaryOperator::Minus => -1,
                    _ => return None,
                };
                let (now, interval) = match (&*binary.left, &*binary.right) {
                    (now, Expr::Literal(interval, _)) => (now, interval),
                    (Expr::Literal(interval, _), now) if sign == 1 => (now, interval),
                    _ => return None,
                };
                let inner = Self::of(now)?;
                let shift = micros(interval)?.checked_mul(sign)?.checked_add(inner.shift)?;
                // A date moves by whole days.
                (inner.unit < DAY || shift % DAY == 0).then_some(Self { shift, ..inner })
            }
            _ => None,
        }
    }

    /// Cutting what has been shifted is another thing unless the shift is a multiple.
    fn cut_to(self, unit: i64) -> Option<Self> {
        (self.shift % unit == 0).then_some(Self { unit: self.unit.max(unit), ..self })
    }
}

/// The length of an interval that is the same whenever it begins.
fn micros(interval: &ScalarValue) -> Option<i64> {
    match interval {
        ScalarValue::IntervalMonthDayNano(Some(value))
            if value.months == 0 && value.nanoseconds % 1000 == 0 =>
        {
            i64::from(value.days).checked_mul(DAY)?.checked_add(value.nanoseconds / 1000)
        }
        ScalarValue::IntervalDayTime(Some(value)) => {
            i64::from(value.days).checked_mul(DAY)?.checked_add(i64::from(value.milliseconds) * 1000)
        }
        _ => None,
    }
}
