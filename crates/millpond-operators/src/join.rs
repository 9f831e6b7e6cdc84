//! Join: the equi-join of two changelogs: inner, outer, semi or anti.
//!
//! Each side keeps its rows in a multimap table by key (tables `left` and `right`). A new row is
//! paired with the rows of the other side that are there, and kept; so every pair is emitted
//! exactly once, by whichever of its rows comes second, and the result does not depend on how the
//! sides interleave. A row that is taken back is paired likewise, and its pairs are taken back.
//!
//! ```text
//! left batch ──▶ keep in left table          right batch ──▶ keep in right table
//!     └──probe──▶ right table ─▶ pairs ─▶ residual filter ─▶ output ◀─ …
//! ```
//!
//! Outer, semi and anti joins also count the partners of each kept row, and show rows *alone*: an
//! outer join those without a partner, beside NULLs. Pairs are emitted at once; a row that becomes
//! alone is emitted at the end of the epoch, one that ceases to be so before its first pair. So of
//! a row nothing is said in vain, and at no moment does the output hold it both alone and in a
//! pair. Where the watermark bounds a side and rows only come, its rows are shown alone only once
//! they are final, so that the output is appended to. Counts are no state of their own: they
//! follow from the rows, and are made anew after a restore.
//!
//! Bound: by watermark, if a condition bounds the times of the inputs; else by a time to live, after
//! which an inner join forgets a row, and another one all rows of a key that nothing has touched for
//! so long, without a word; else all rows are kept.
//! Invariants: output leaves in batches of at most `BATCH_ROWS_MAX`, however skewed a key is
//! (invariant 12); a row with a NULL key is neither paired nor kept, unless NULL equals NULL.

mod key_times;
mod kind;
mod lone;
mod output;
mod pending;
mod retention;

mod side;

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use datafusion::physical_plan::PhysicalExpr;
use millpond_core::{ChangelogBatch, ChangelogMode, EpochTime, Error, Result, Timestamp, Watermark};
use millpond_state::StateTable;

use self::key_times::KeyTimes;
pub use self::kind::JoinKind;
use self::pending::Pending;
pub use self::retention::{JoinRetention, SideRetention};
use self::side::Side;
use crate::expression::{Expression, columns_of, over_columns, reads_epoch, sql_text};
use crate::operator::{
    BuildContext, EpochOutcome, InputIndex, KeySet, KeySets, Operator, OperatorContext, OperatorFactory,
    Progress, Residency,
};

/// Describes a [`Join`]. The exchanges in front of it, if any, hash by exactly the key columns in
/// their order. Inputs are in append or retract mode.
#[derive(Debug, Clone)]
pub struct JoinFactory {
    /// Columns of the left input.
    pub left_schema: SchemaRef,
    /// Columns of the right input.
    pub right_schema: SchemaRef,
    /// Key columns of the left input.
    pub left_keys: Vec<usize>,
    /// Key columns of the right input, of the same types; none: every pair of rows.
    pub right_keys: Vec<usize>,
    /// Whether NULL keys match each other (`IS NOT DISTINCT FROM`).
    pub null_equals_null: bool,
    /// What else must hold, over the left columns followed by the right ones.
    pub filter: Option<Arc<dyn PhysicalExpr>>,
    /// Output columns, as indices into the left columns followed by the right ones; of semi and
    /// anti joins, left columns only.
    pub output: Vec<usize>,
    /// Their names and types.
    pub schema: SchemaRef,
    /// The changelog of the left input.
    pub left_mode: ChangelogMode,
    /// The changelog of the right input.
    pub right_mode: ChangelogMode,
    /// By what rows become useless.
    pub retention: JoinRetention,
    /// Which rows are given.
    pub kind: JoinKind,
    /// Whether a left row with two partners is an error: the right side is a scalar subquery.
    pub at_most_one: bool,
    /// How long a row of the left side, of the right side, is kept, in microseconds; `None`: for ever.
    /// For joins without a retention; the same on both sides of one that is not an inner join.
    pub ttl: [Option<i64>; 2],
}

impl OperatorFactory for JoinFactory {
    fn name(&self) -> &'static str {
        "Join"
    }
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
    fn build(&self, context: BuildContext) -> Result<Box<dyn Operator>> {
        Ok(Box::new(Join::new(self, context)?))
    }
    fn describe(&self) -> String {
        let equality = |(left, right): (&usize, &usize)| {
            format!("{} = {}", self.left_schema.field(*left).name(), self.right_schema.field(*right).name())
        };
        let keys: Vec<String> = self.left_keys.iter().zip(&self.right_keys).map(equality).collect();
        let filter = self.filter.as_ref().map_or_else(String::new, |f| format!(" where=[{}]", sql_text(f)));
        format!("{} keys=[{}]{filter}", self.kind.name(), keys.join(", "))
    }
}

impl JoinFactory {
    fn check(&self) -> Result<()> {
        if self.left_keys.len() != self.right_keys.len() {
            return Err(Error::internal("a join has unequal numbers of keys"));
        }
        for (left, right) in self.left_keys.iter().zip(&self.right_keys) {
            let (left, right) = (self.left_schema.field(*left), self.right_schema.field(*right));
            if left.data_type() != right.data_type() {
                return Err(Error::internal(format!(
                    "join keys {:?} and {:?} are of types {} and {}",
                    left.name(),
                    right.name(),
                    left.data_type(),
                    right.data_type()
                )));
            }
        }
        if self.ttl != [None; 2] && self.retention != JoinRetention::default() {
            return Err(Error::internal("a join that goes by time forgets its rows"));
        }
        if self.kind != JoinKind::Inner && self.ttl[0] != self.ttl[1] {
            return Err(Error::internal("a join that counts partners forgets rows of one side"));
        }
        if self.filter.as_ref().is_some_and(reads_epoch) {
            return Err(Error::invalid("a join condition cannot read the processing time or the watermark"));
        }
        Ok(())
    }
}

/// A join in one task.
#[derive(Debug)]
pub struct Join {
    kind: JoinKind,
    left: Side,
    right: Side,
    null_equals_null: bool,
    filter: Option<ResidualFilter>,
    /// Columns of the left input: where the right columns begin.
    left_columns: usize,
    output: Vec<usize>,
    schema: SchemaRef,
    hold_back: i64,
    /// The batch whose pairs are being emitted.
    pending: Option<Pending>,
    /// What did not fit into the last output batch.
    ready: VecDeque<ChangelogBatch>,
    closing: Option<Closing>,
    at_most_one: bool,
    /// Where keys are forgotten as a whole.
    key_times: Option<KeyTimes>,
}

/// The end of an epoch, while lone rows are being emitted.
#[derive(Debug, Clone, Copy)]
struct Closing {
    watermark: Option<Watermark>,
    /// The side whose rows are next, and the first of its touched rows.
    side: InputIndex,
    row: usize,
}

/// A predicate over a few of the joined columns.
#[derive(Debug)]
struct ResidualFilter {
    columns: Vec<usize>,
    schema: SchemaRef,
    predicate: Expression,
}

impl Join {
    /// A join without state.
    pub fn new(factory: &JoinFactory, context: BuildContext) -> Result<Self> {
        factory.check()?;
        let retention = factory.retention;
        let key_ttl = factory.ttl[0].filter(|_| factory.kind != JoinKind::Inner);
        let key_type = |key: &usize| factory.left_schema.field(*key).data_type().clone();
        let key_types: Vec<_> = factory.left_keys.iter().map(key_type).collect();
        Ok(Self {
            key_times: key_ttl.map(|ttl| KeyTimes::new(&key_types, ttl)).transpose()?,
            kind: factory.kind,
            left: Side::new(factory, context, 0)?,
            right: Side::new(factory, context, 1)?,
            null_equals_null: factory.null_equals_null,
            filter: factory.filter.clone().map(|filter| ResidualFilter::new(factory, filter)).transpose()?,
            left_columns: factory.left_schema.fields().len(),
            output: factory.output.clone(),
            schema: factory.schema.clone(),
            hold_back: retention.hold_back(),
            pending: None,
            ready: VecDeque::new(),
            closing: None,
            at_most_one: factory.at_most_one,
        })
    }

    /// The side of an input, and the other one.
    fn sides(&mut self, input: InputIndex) -> (&mut Side, &mut Side) {
        if input == 0 { (&mut self.left, &mut self.right) } else { (&mut self.right, &mut self.left) }
    }

    /// Forgets the rows whose time to live is over.
    fn forget(&mut self, now: EpochTime) -> Result<()> {
        if self.key_times.is_some() {
            return self.forget_keys(now);
        }
        self.left.forget(now)?;
        self.right.forget(now)
    }

    /// Says the next thing that there is to say.
    fn advance(&mut self, ctx: &mut OperatorContext) -> Result<Progress> {
        if let Some(batch) = self.ready.pop_front() {
            ctx.emit(batch);
        } else if let Some(pending) = self.pending.take() {
            self.emit_pairs(ctx, pending)?;
        } else if let Some(closing) = self.closing.take() {
            self.close(ctx, closing)?;
        }
        let done = self.ready.is_empty() && self.pending.is_none() && self.closing.is_none();
        Ok(if done { Progress::Done } else { Progress::More })
    }
}

impl ResidualFilter {
    fn new(factory: &JoinFactory, filter: Expression) -> Result<Self> {
        let columns: Vec<usize> = columns_of(&filter).into_iter().collect();
        let (left, right) = (factory.left_schema.fields(), factory.right_schema.fields());
        let fields: Vec<_> = left.iter().chain(right.iter()).cloned().collect();
        let schema = Arc::new(Schema::new(columns.iter().map(|c| fields[*c].clone()).collect::<Vec<_>>()));
        Ok(Self { predicate: over_columns(filter, &columns)?, schema, columns })
    }
}

impl Operator for Join {
    fn touches(&self, input: InputIndex, batch: &ChangelogBatch) -> Result<KeySets> {
        let hashes = if input == 0 { self.left.hashes(batch)? } else { self.right.hashes(batch)? };
        Ok((0..2).map(|table| KeySet { table, hashes: hashes.clone() }).collect())
    }

    fn process(
        &mut self,
        ctx: &mut OperatorContext,
        input: InputIndex,
        batch: ChangelogBatch,
    ) -> Result<Progress> {
        assert!(self.pending.is_none(), "invariant 12: a batch comes only when the last one is done");
        self.forget(ctx.time)?;
        self.pending = self.pend(ctx, input, batch)?;
        self.advance(ctx)
    }

    fn end_epoch(
        &mut self,
        ctx: &mut OperatorContext,
        watermark: Option<Watermark>,
        time: EpochTime,
    ) -> Result<EpochOutcome> {
        if self.key_times.is_none() {
            self.forget(time)?;
        }
        self.check_scalar()?;
        self.await_finality()?;
        self.closing = Some(Closing { watermark, side: 0, row: 0 });
        let held_back = |watermark: Watermark| match watermark {
            Timestamp::MAX => watermark,
            behind => Timestamp(behind.0.saturating_sub(self.hold_back)),
        };
        let watermark = watermark.map(held_back);
        let wake_at = match &self.key_times {
            Some(times) => times.wake_after(time),
            None => [&self.left, &self.right].into_iter().filter_map(Side::forgets_at).min(),
        };
        Ok(EpochOutcome { watermark, wake_at, progress: self.advance(ctx)? })
    }

    fn resume(&mut self, ctx: &mut OperatorContext) -> Result<Progress> {
        self.advance(ctx)
    }

    fn residency(&mut self) -> Residency<'_> {
        Residency::Resident(self.key_times.as_ref().map_or(0, KeyTimes::bytes))
    }

    fn tables(&mut self) -> Vec<&mut dyn StateTable> {
        vec![&mut self.left.table, &mut self.right.table]
    }

    fn restored(&mut self, watermark: Option<Watermark>) -> Result<()> {
        self.restore_key_times()?;
        self.count_partners()?;
        self.show_as_before(watermark)
    }
}

#[cfg(test)]
mod tests;
