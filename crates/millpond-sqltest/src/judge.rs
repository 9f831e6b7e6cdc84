//! The judge: runs a query as a stream and compares it, after every epoch, with the batch answer
//! over the input that has been accepted so far (invariant 1).
//!
//! It also watches every edge of the plan: watermarks never go back and nothing is late for the
//! mark before it (invariant 3), changelogs keep their mode, retractions meet their row and upsert
//! keys are keys (invariant 4), and nothing is lost without being counted (invariant 14).
//!
//! ```text
//! recorders ──epoch──▶ edges: modes, keys, watermarks
//!           └─sources─▶ tables ─▶ batch answer ─┐
//! client ────epoch──▶ fold ─────────────────────┴▶ equal?
//! ```

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, make_array, new_null_array};
use arrow::datatypes::SchemaRef;
use millpond::{ChangelogFold, PreparedQuery, Session, StatementSource, TableRows, TableWatermarks};
use millpond_core::time::timestamp_values;
use millpond_core::{ChangelogBatch, ChangelogMode, EpochMark, Error, Result, RowKind, Timestamp, Watermark};
use millpond_planner::{NodeKind, StreamProperties, is_unsupported};

use crate::difference::{check_unique, difference};
use crate::recorder::{Take, Watched, instrument};

/// Operators that give rows only when the watermark has passed them: what they give is compared
/// at the end of the input. Windows are waited for too, but batch knows which are final.
const WAITING: &[&str] = &["IntervalJoin", "MatchRecognize", "Over", "TemporalJoin"];
const WINDOWED: &[&str] = &["SessionAggregate", "WindowAggregate"];
const WINDOW_ROWS: &[&str] = &["SessionWindow", "WindowTvf"];

/// The first epochs, of which each is compared; later ones are at growing distances.
const EVERY_EPOCH_UP_TO: u64 = 12;

/// What came of judging.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Queries compared.
    pub(crate) queries: usize,
    /// Epochs at which they were.
    pub(crate) epochs: usize,
    /// Queries that batch cannot answer, or that do not stream.
    pub(crate) passed_over: usize,
}

impl Tally {
    pub(crate) fn add(&mut self, other: Tally) {
        self.queries += other.queries;
        self.epochs += other.epochs;
        self.passed_over += other.passed_over;
    }
}

/// Judges every query of a statement.
///
/// Errors: *Internal*, with the epoch and what differs; any other is the query's own.
pub(crate) async fn judge(session: &Session, source: &StatementSource) -> Result<Tally> {
    let mut tally = Tally::default();
    let Ok(queries) = session.prepare(source) else {
        // A statement that cannot be planned is told so, or answered in batch, by running it.
        return Ok(tally);
    };
    for query in queries {
        match query.planned.bounded {
            true => tally.add(judge_query(session, query).await?),
            false => tally.passed_over += 1,
        }
    }
    Ok(tally)
}

/// Judges one query.
///
/// Errors: as [`judge`].
pub(crate) async fn judge_query(session: &Session, mut query: PreparedQuery) -> Result<Tally> {
    let watched = instrument(&mut query.planned.plan);
    let mut trial = Trial::new(&query, watched)?;
    let mut changes = session.start_prepared(&query)?;
    while let Some((mark, batches)) = changes.next_epoch().await? {
        let told = |error: Error| match error.kind() {
            millpond::ErrorKind::Internal => {
                error.context(format!("epoch {} of {}", mark.epoch.0, query.text))
            }
            _ => error,
        };
        trial.take_epoch(&batches).map_err(told)?;
        if trial.is_due(&mark) {
            trial.compare(&query, &mark).await.map_err(told)?;
        }
    }
    changes.metrics().check_accounting()?;
    trial.check_sent(&changes.metrics())?;
    Ok(trial.tally())
}

/// A query under judgement.
struct Trial {
    edges: Vec<Edge>,
    answer: ChangelogFold,
    timing: Timing,
    /// The tables as query knows them.
    schemas: HashMap<String, SchemaRef>,
    next_due: u64,
    compared: usize,
    /// Batch cannot answer the query, or not yet.
    passed_over: bool,
}

/// When an answer can be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Timing {
    /// After every epoch.
    Always,
    /// After every epoch, restricted to windows that are final.
    FinalWindows,
    /// When everything is final.
    End,
}

impl Trial {
    fn new(query: &PreparedQuery, watched: Vec<Watched>) -> Result<Self> {
        let client = query.planned.plan.nodes.last().ok_or_else(|| Error::internal("an empty plan"))?;
        let mut schemas = HashMap::new();
        for watched in &watched {
            if let NodeKind::Source { table, .. } = &watched.node.kind {
                schemas.insert(table.clone(), query.table_schema(table)?);
            }
        }
        Ok(Self {
            timing: timing(&watched),
            answer: fold_of(&client.schema, &client.properties),
            edges: watched.into_iter().map(Edge::new).collect(),
            schemas,
            next_due: 1,
            compared: 0,
            passed_over: false,
        })
    }

    fn take_epoch(&mut self, changes: &[ChangelogBatch]) -> Result<()> {
        for edge in &mut self.edges {
            edge.take_epoch()?;
        }
        changes.iter().try_for_each(|batch| self.answer.add(batch))
    }

    fn is_due(&mut self, mark: &EpochMark) -> bool {
        let due = mark.end || (self.timing != Timing::End && mark.epoch.0 >= self.next_due);
        if due {
            let epoch = mark.epoch.0;
            self.next_due = if epoch < EVERY_EPOCH_UP_TO { epoch + 1 } else { epoch + epoch / 4 };
        }
        due && !self.passed_over
    }

    async fn compare(&mut self, query: &PreparedQuery, mark: &EpochMark) -> Result<()> {
        for edge in &self.edges {
            edge.check_keys()?;
        }
        let Some((mut tables, watermarks)) = self.tables()? else { return Ok(()) };
        // Of a table that the plan does not read no row matters.
        for table in query.tables()? {
            tables.entry(table).or_default();
        }
        if query.reads_windows()? && self.edges.iter().any(|edge| edge.saw_late) {
            // Which windows a late row still counts in is the window model's to judge.
            self.passed_over = true;
            return Ok(());
        }
        let final_at = (self.timing == Timing::FinalWindows).then_some(&watermarks);
        let batch = match query.batch(&tables, mark.time, final_at).await {
            Ok(batch) => batch,
            Err(error) if is_unsupported(&error) || error.message().contains("not support") => {
                self.passed_over = true;
                return Ok(());
            }
            Err(error) => return Err(Error::internal(format!("batch has no answer: {error}"))),
        };
        self.compared += 1;
        match difference(&self.answer.batches()?, &batch)? {
            None => Ok(()),
            Some(text) => Err(Error::internal(format!(
                "invariant 1: the stream's result is not the batch answer over the accepted input\n{text}"
            ))),
        }
    }

    /// What the sources have sent so far, and how far they say it is complete; `None` while two
    /// sources of one table have not sent the same.
    fn tables(&self) -> Result<Option<(TableRows, TableWatermarks)>> {
        let (mut tables, mut watermarks) = (TableRows::new(), TableWatermarks::new());
        for edge in &self.edges {
            let NodeKind::Source { table, .. } = &edge.watched.node.kind else { continue };
            let schema = &self.schemas[table];
            let rows =
                edge.content()?.iter().map(|rows| widened(rows, schema)).collect::<Result<Vec<_>>>()?;
            watermarks.insert(table.clone(), edge.watermark());
            if let Some(other) = tables.insert(table.clone(), rows)
                && difference(&other, &tables[table])?.is_some()
            {
                return Ok(None);
            }
        }
        Ok(Some((tables, watermarks)))
    }

    /// Invariant 14: every row that a source has sent was received.
    fn check_sent(&self, metrics: &millpond::JobMetrics) -> Result<()> {
        let recorded: u64 = self.edges.iter().filter(|edge| edge.is_source()).map(|edge| edge.received).sum();
        let sent: u64 = metrics.sources.iter().map(|source| source.metrics.sent.value()).sum();
        if recorded == sent {
            return Ok(());
        }
        Err(Error::internal(format!(
            "invariant 14: the sources have sent {sent} rows and {recorded} were received"
        )))
    }

    fn tally(&self) -> Tally {
        let judged = usize::from(self.compared > 0 && !self.passed_over);
        Tally { queries: judged, epochs: self.compared, passed_over: 1 - judged }
    }
}

fn timing(watched: &[Watched]) -> Timing {
    let names: Vec<&str> = watched.iter().map(|watched| watched.node.kind.label()).collect();
    let has = |any: &[&str]| names.iter().any(|name| any.contains(name));
    match has(WINDOWED) {
        _ if has(WAITING) => Timing::End,
        // Batch knows all rows of VALUES from the start.
        _ if watched.iter().any(|watched| matches!(watched.node.kind, NodeKind::Rows { .. })) => Timing::End,
        true if has(WINDOW_ROWS) => Timing::End,
        true => Timing::FinalWindows,
        false => Timing::Always,
    }
}

fn fold_of(schema: &SchemaRef, properties: &StreamProperties) -> ChangelogFold {
    match (properties.mode, properties.upsert_keys.first()) {
        (ChangelogMode::Upsert, Some(key)) => ChangelogFold::upsert(Arc::clone(schema), key.clone()),
        _ => ChangelogFold::new(Arc::clone(schema)),
    }
}

/// What has left a node, over all its tasks.
struct Edge {
    watched: Watched,
    /// Per task: a retraction comes from the task that has sent its row.
    contents: BTreeMap<usize, ChangelogFold>,
    watermarks: BTreeMap<usize, Option<Watermark>>,
    received: u64,
    saw_late: bool,
}

impl Edge {
    fn new(watched: Watched) -> Self {
        Self { watched, contents: BTreeMap::new(), watermarks: BTreeMap::new(), received: 0, saw_late: false }
    }

    fn is_source(&self) -> bool {
        matches!(self.watched.node.kind, NodeKind::Source { .. } | NodeKind::Rows { .. })
    }

    fn take_epoch(&mut self) -> Result<()> {
        let what = format!("{} ({})", self.watched.node.kind.label(), self.watched.node.uid);
        for (task, take) in self.watched.next_epoch() {
            let take = take.ok_or_else(|| {
                Error::internal(format!("invariant 2: the client is ahead of task {task} of {what}"))
            })?;
            self.take(task, take).map_err(|error| error.context(format!("behind {what}, task {task}")))?;
        }
        Ok(())
    }

    fn take(&mut self, task: usize, take: Take) -> Result<()> {
        let before = self.watermarks.insert(task, take.watermark).flatten();
        if take.watermark < before {
            return Err(Error::internal(format!(
                "invariant 3: the watermark went back from {before:?} to {:?}",
                take.watermark
            )));
        }
        for batch in &take.batches {
            self.received += batch.num_rows() as u64;
            self.saw_late |=
                batch.late.as_ref().is_some_and(|late| late.iter().any(|tag| *tag > Timestamp::MIN));
            self.check_batch(batch, before)?;
            if self.is_kept() {
                let node = &self.watched.node;
                let fresh = || fold_of(&node.schema, &node.properties);
                self.contents.entry(task).or_insert_with(fresh).add(batch)?;
            }
        }
        Ok(())
    }

    fn check_batch(&self, batch: &ChangelogBatch, before: Option<Watermark>) -> Result<()> {
        let StreamProperties { mode, time_columns, .. } = &self.watched.node.properties;
        let kept = |kind: RowKind| match mode {
            ChangelogMode::Append => kind == RowKind::Insert,
            ChangelogMode::Upsert => kind != RowKind::UpdateBefore,
            ChangelogMode::Retract => true,
        };
        if let Some(row) = (0..batch.num_rows()).find(|row| !kept(batch.kind(*row))) {
            let kind = batch.kind(row).symbol();
            return Err(Error::internal(format!("invariant 4: {kind} in a changelog of mode {mode}")));
        }
        match before {
            Some(watermark) if *mode == ChangelogMode::Append => time_columns
                .iter()
                .try_for_each(|column| check_not_late(batch, batch.rows.column(*column), watermark)),
            Some(_) | None => Ok(()),
        }
    }

    /// Whether its content is needed: as a table, or to know what a retraction may take back.
    fn is_kept(&self) -> bool {
        let properties = &self.watched.node.properties;
        self.is_source() || properties.mode != ChangelogMode::Append || !properties.upsert_keys.is_empty()
    }

    fn content(&self) -> Result<Vec<RecordBatch>> {
        let mut content = Vec::new();
        for fold in self.contents.values() {
            content.extend(fold.batches()?);
        }
        Ok(content)
    }

    /// Invariant 4: what the plan calls an upsert key tells rows apart.
    fn check_keys(&self) -> Result<()> {
        let node = &self.watched.node;
        let content = self.content()?;
        node.properties.upsert_keys.iter().try_for_each(|key| {
            check_unique(&content, key)
                .map_err(|error| error.context(format!("behind {} ({})", node.kind.label(), node.uid)))
        })
    }

    fn watermark(&self) -> Watermark {
        self.watermarks
            .values()
            .map(|watermark| watermark.unwrap_or(Timestamp::MIN))
            .min()
            .unwrap_or(Timestamp::MIN)
    }
}

/// Errors: *Internal* (invariant 3) for a row without a late tag that is behind the watermark that
/// was sent before it.
fn check_not_late(batch: &ChangelogBatch, times: &ArrayRef, watermark: Watermark) -> Result<()> {
    let (values, precision) = timestamp_values(times)?;
    for (row, value) in values.iter().enumerate() {
        let time = precision.to_timestamp(*value);
        if times.is_valid(row) && time <= watermark && batch.late_tag(row) == Timestamp::MIN {
            return Err(Error::internal(format!(
                "invariant 3: a row of {time} behind the watermark {watermark}"
            )));
        }
    }
    Ok(())
}

/// Rows with every column of their table; columns that were not read hold nothing of use.
fn widened(rows: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    let column = |field: &arrow::datatypes::FieldRef| -> Result<ArrayRef> {
        if let Some(column) = rows.column_by_name(field.name()) {
            return Ok(Arc::clone(column));
        }
        let empty = new_null_array(field.data_type(), rows.num_rows());
        if field.is_nullable() {
            return Ok(empty);
        }
        Ok(make_array(empty.to_data().into_builder().nulls(None).build()?))
    };
    let columns = schema.fields().iter().map(column).collect::<Result<Vec<_>>>()?;
    let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
    Ok(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?)
}

#[cfg(test)]
mod tests;
