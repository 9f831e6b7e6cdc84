//! Join: the inner equi-join of two changelogs.
//!
//! Each side keeps its rows in a multimap table by key. A new row is paired with the rows of the
//! other side that are there, and kept; so every pair is emitted exactly once, by whichever of
//! its rows comes second, and the result does not depend on how the sides interleave. A row that
//! is taken back is paired likewise, and its pairs are taken back.
//!
//! ```text
//! left batch ──▶ keep in left table          right batch ──▶ keep in right table
//!     └──probe──▶ right table ─▶ pairs ─▶ residual filter ─▶ output ◀─ …
//! ```
//!
//! Invariants: pairs leave in batches of at most `BATCH_ROWS_MAX`, however skewed a key is
//! (invariant 12); a row with a NULL key is neither paired nor kept, unless NULL equals NULL.
//! Outer, semi and anti joins would add a count of partners beside each kept row, and emit at
//! the end of the epoch.

mod retention;

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::{and, is_not_null, take};
use arrow::datatypes::{Schema, SchemaRef};
use datafusion::physical_plan::PhysicalExpr;
use millpond_core::key::stable_hashes;
use millpond_core::limits::BATCH_ROWS_MAX;
use millpond_core::{
    ChangelogBatch, ChangelogMode, EpochTime, Error, KeyHashes, Result, RowKind, RowKinds, TimePrecision,
    Timestamp, Watermark,
};
use millpond_state::multimap_table::{Keys, Pairs, ProbeCursor};
use millpond_state::{MultimapSpec, MultimapTable, StateTable};

pub use self::retention::{JoinRetention, SideRetention};
use crate::expression::{Expression, columns_of, evaluate_predicate, over_columns, reads_epoch, sql_text};
use crate::operator::{
    BuildContext, EpochOutcome, InputIndex, KeySet, KeySets, Operator, OperatorContext, OperatorFactory,
    Progress,
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
    /// Output columns, as indices into the left columns followed by the right ones.
    pub output: Vec<usize>,
    /// Their names and types.
    pub schema: SchemaRef,
    /// The changelog of the left input.
    pub left_mode: ChangelogMode,
    /// The changelog of the right input.
    pub right_mode: ChangelogMode,
    /// By what rows become useless.
    pub retention: JoinRetention,
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
        format!("inner keys=[{}]{filter}", keys.join(", "))
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
        if self.filter.as_ref().is_some_and(reads_epoch) {
            return Err(Error::invalid("a join condition cannot read the processing time or the watermark"));
        }
        Ok(())
    }
}

/// An inner join in one task.
#[derive(Debug)]
pub struct Join {
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
}

#[derive(Debug)]
struct Side {
    table: MultimapTable,
    keys: Vec<usize>,
    retention: Option<SideRetention>,
    precision: TimePrecision,
}

/// A batch that has been kept and is being paired.
#[derive(Debug)]
struct Pending {
    input: InputIndex,
    batch: ChangelogBatch,
    keys: Keys,
    cursor: ProbeCursor,
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
        let side = |name: &str, rows: &SchemaRef, keys: &[usize], mode, retention| {
            Side::new(factory, context, name, rows, keys, mode, retention)
        };
        let retention = factory.retention;
        Ok(Self {
            left: side("left", &factory.left_schema, &factory.left_keys, factory.left_mode, retention.left)?,
            right: side(
                "right",
                &factory.right_schema,
                &factory.right_keys,
                factory.right_mode,
                retention.right,
            )?,
            null_equals_null: factory.null_equals_null,
            filter: factory.filter.clone().map(|filter| ResidualFilter::new(factory, filter)).transpose()?,
            left_columns: factory.left_schema.fields().len(),
            output: factory.output.clone(),
            schema: factory.schema.clone(),
            hold_back: retention.hold_back(),
            pending: None,
        })
    }

    /// The side of an input, and the other one.
    fn sides(&mut self, input: InputIndex) -> (&mut Side, &mut Side) {
        if input == 0 { (&mut self.left, &mut self.right) } else { (&mut self.right, &mut self.left) }
    }

    /// The rows that can have partners: in time, and with a key.
    fn accepted(
        &mut self,
        ctx: &OperatorContext,
        input: InputIndex,
        mut batch: ChangelogBatch,
    ) -> Result<ChangelogBatch> {
        let nulls_match = self.null_equals_null;
        let (own, other) = self.sides(input);
        if let Some(in_time) = retention::in_time(&batch, own.retention, other.retention, ctx.watermark)? {
            ctx.metrics.late.add((in_time.len() - in_time.true_count()) as u64);
            batch = batch.filter(&in_time)?;
        }
        if !nulls_match && let Some(with_key) = own.rows_with_key(&batch.rows)? {
            ctx.metrics.filtered.add((with_key.len() - with_key.true_count()) as u64);
            batch = batch.filter(&with_key)?;
        }
        ctx.metrics.accepted.add(batch.num_rows() as u64);
        Ok(batch)
    }

    /// Emits the next pairs of the pending batch.
    fn emit_pairs(&mut self, ctx: &mut OperatorContext) -> Result<Progress> {
        let Some(mut pending) = self.pending.take() else { return Ok(Progress::Done) };
        let mut pairs = Pairs::default();
        let (_, other) = self.sides(pending.input);
        let done = other.table.probe(&pending.keys, &mut pending.cursor, BATCH_ROWS_MAX, &mut pairs);
        if !pairs.is_empty() {
            let pairs = self.filtered(&pending, pairs)?;
            ctx.emit(self.joined(&pending, &pairs)?);
        }
        if done {
            return Ok(Progress::Done);
        }
        self.pending = Some(pending);
        Ok(Progress::More)
    }

    fn filtered(&mut self, pending: &Pending, pairs: Pairs) -> Result<Pairs> {
        let Some(filter) = &self.filter else { return Ok(pairs) };
        let (columns, schema, predicate) =
            (filter.columns.clone(), filter.schema.clone(), filter.predicate.clone());
        let rows = batch_of(schema, self.joined_columns(pending, &pairs, &columns)?, pairs.len())?;
        let kept = evaluate_predicate(&predicate, &rows)?;
        if kept.true_count() == kept.len() {
            return Ok(pairs);
        }
        let kept: Vec<usize> =
            (0..kept.len()).filter(|pair| kept.is_valid(*pair) && kept.value(*pair)).collect();
        Ok(pairs.take(&kept))
    }

    fn joined(&mut self, pending: &Pending, pairs: &Pairs) -> Result<ChangelogBatch> {
        let output = self.output.clone();
        let columns = self.joined_columns(pending, pairs, &output)?;
        let rows = batch_of(self.schema.clone(), columns, pairs.len())?;
        Ok(ChangelogBatch { rows, kinds: joined_kinds(&pending.batch, pairs), late: None, hashes: None })
    }

    /// Columns of the pairs, by their indices into the left columns followed by the right ones.
    fn joined_columns(
        &mut self,
        pending: &Pending,
        pairs: &Pairs,
        columns: &[usize],
    ) -> Result<Vec<ArrayRef>> {
        let split = self.left_columns;
        let (_, other) = self.sides(pending.input);
        let place = |column: usize| if column < split { (0, column) } else { (1, column - split) };
        let places: Vec<(InputIndex, usize)> = columns.iter().map(|column| place(*column)).collect();
        let stored: Vec<usize> =
            places.iter().filter(|(side, _)| *side != pending.input).map(|(_, c)| *c).collect();
        let mut stored = other.table.gather(&pairs.stored, &stored)?.into_iter();
        let probing = UInt32Array::from(pairs.probing.clone());
        let column = |(side, column): (InputIndex, usize)| -> Result<ArrayRef> {
            if side == pending.input {
                return Ok(take(pending.batch.rows.column(column), &probing, None)?);
            }
            Ok(stored.next().expect("as many columns as were asked for"))
        };
        places.into_iter().map(column).collect()
    }
}

impl Side {
    fn new(
        factory: &JoinFactory,
        context: BuildContext,
        name: &str,
        rows: &SchemaRef,
        keys: &[usize],
        mode: ChangelogMode,
        retention: Option<SideRetention>,
    ) -> Result<Self> {
        let retracts = match mode {
            ChangelogMode::Append => false,
            ChangelogMode::Retract => true,
            ChangelogMode::Upsert => {
                return Err(Error::internal(format!("the {name} input of a join is in upsert mode")));
            }
        };
        let table = MultimapTable::new(MultimapSpec {
            name: name.into(),
            rows: rows.clone(),
            keys: keys.to_vec(),
            null_keys: factory.null_equals_null,
            time_column: retention.map(SideRetention::column),
            retracts,
            max_parallelism: context.max_parallelism,
        })?;
        Ok(Self { table, keys: keys.to_vec(), precision: precision_of(rows, retention)?, retention })
    }

    /// Which rows have no NULL in their key; `None`: all.
    fn rows_with_key(&self, rows: &RecordBatch) -> Result<Option<BooleanArray>> {
        let mut with_key: Option<BooleanArray> = None;
        for column in self.keys.iter().map(|k| rows.column(*k)).filter(|column| column.null_count() > 0) {
            let valid = is_not_null(column)?;
            with_key = Some(match with_key {
                None => valid,
                Some(others) => and(&others, &valid)?,
            });
        }
        Ok(with_key)
    }

    /// Adds the added rows, then takes back the others: a row may come and go in one batch.
    fn keep(&mut self, batch: &ChangelogBatch, keys: &Keys) -> Result<()> {
        let Some(kinds) = &batch.kinds else { return self.table.append(batch.rows.clone(), keys) };
        let rows_that = |addition: bool| {
            let rows = kinds.iter().enumerate().filter(|(_, kind)| kind.is_addition() == addition);
            batch.take(&UInt32Array::from_iter_values(rows.map(|(row, _)| row as u32)))
        };
        let (added, removed) = (rows_that(true)?, rows_that(false)?);
        let keys_of =
            |table: &MultimapTable, batch: &ChangelogBatch| table.keys(&batch.rows, batch.hashes.clone());
        let keys = keys_of(&self.table, &added)?;
        self.table.append(added.rows, &keys)?;
        let keys = keys_of(&self.table, &removed)?;
        self.table.remove(&removed.rows, &keys)
    }

    fn hashes(&self, batch: &ChangelogBatch) -> Result<KeyHashes> {
        match &batch.hashes {
            Some(hashes) => Ok(hashes.clone()),
            None => {
                let columns: Vec<ArrayRef> =
                    self.keys.iter().map(|k| batch.rows.column(*k).clone()).collect();
                stable_hashes(&columns, batch.num_rows())
            }
        }
    }

    fn expire(&mut self, watermark: Watermark, other: Option<SideRetention>) -> Result<()> {
        if let Some(retention) = self.retention {
            let slack = other.map_or(0, SideRetention::slack);
            self.table.expire(retention.expired_through(watermark, self.precision, slack))?;
        }
        Ok(())
    }
}

fn precision_of(rows: &SchemaRef, retention: Option<SideRetention>) -> Result<TimePrecision> {
    let Some(retention) = retention else { return Ok(TimePrecision::Microsecond) };
    let field = rows.field(retention.column());
    TimePrecision::of(field.data_type()).ok_or_else(|| {
        Error::internal(format!(
            "column {:?} of type {} bounds the state of a join",
            field.name(),
            field.data_type()
        ))
    })
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

/// `None` while the probing rows are all additions; pairs of rows taken back are deletes.
fn joined_kinds(batch: &ChangelogBatch, pairs: &Pairs) -> Option<RowKinds> {
    let kinds = batch.kinds.as_ref()?;
    let kind = |row: &u32| if kinds[*row as usize].is_addition() { RowKind::Insert } else { RowKind::Delete };
    Some(pairs.probing.iter().map(kind).collect())
}

fn batch_of(schema: SchemaRef, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(schema, columns, &options)
        .map_err(|error| Error::internal(format!("a join does not give its columns: {error}")))
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
        let batch = self.accepted(ctx, input, batch)?;
        if batch.is_empty() {
            return Ok(Progress::Done);
        }
        let (own, _) = self.sides(input);
        let keys = own.table.keys(&batch.rows, batch.hashes.clone())?;
        own.keep(&batch, &keys)?;
        self.pending = Some(Pending { input, batch, keys, cursor: ProbeCursor::default() });
        self.emit_pairs(ctx)
    }

    fn end_epoch(
        &mut self,
        _: &mut OperatorContext,
        watermark: Option<Watermark>,
        _: EpochTime,
    ) -> Result<EpochOutcome> {
        if let Some(watermark) = watermark {
            self.left.expire(watermark, self.right.retention)?;
            self.right.expire(watermark, self.left.retention)?;
        }
        let held_back = |watermark: Watermark| match watermark {
            Timestamp::MAX => watermark,
            behind => Timestamp(behind.0.saturating_sub(self.hold_back)),
        };
        Ok(EpochOutcome { watermark: watermark.map(held_back), wake_at: None, progress: Progress::Done })
    }

    fn resume(&mut self, ctx: &mut OperatorContext) -> Result<Progress> {
        self.emit_pairs(ctx)
    }

    fn tables(&mut self) -> Vec<&mut dyn StateTable> {
        vec![&mut self.left.table, &mut self.right.table]
    }

    fn restored(&mut self, _: Option<Watermark>) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
