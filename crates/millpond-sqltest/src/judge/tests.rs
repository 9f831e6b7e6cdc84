//! The judge itself is judged: an operator that errs is put into a plan, and must be found.

use std::sync::Arc;

use arrow::array::UInt32Array;
use millpond::{Engine, EngineOptions, split_statements};
use millpond_core::{EpochTime, OperatorUid};
use millpond_operators::{
    BuildContext, EpochOutcome, InputIndex, KeySets, Operator, OperatorContext, OperatorFactory, Progress,
    Residency,
};
use millpond_planner::StreamNode;
use millpond_state::StateTable;

use super::*;

/// How an operator errs.
#[derive(Debug, Clone, Copy)]
enum Fault {
    /// None: it passes everything on.
    None,
    /// It forgets the first row of the second epoch, though not in the end.
    Delays,
    /// It loses rows that it says it has accepted.
    Loses,
    /// It takes rows in without saying what becomes of them.
    Uncounted,
    /// It sends every row a second time.
    Repeats,
    /// It takes back a row that was never there.
    TakesBack,
    /// Its watermark is ahead of its rows.
    Hurries,
}

#[derive(Debug)]
struct FaultyFactory {
    fault: Fault,
    schema: SchemaRef,
}

impl OperatorFactory for FaultyFactory {
    fn name(&self) -> &'static str {
        "Faulty"
    }
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
    fn build(&self, _: BuildContext) -> Result<Box<dyn Operator>> {
        Ok(Box::new(Faulty { fault: self.fault, epoch: 1, held: None }))
    }
    fn describe(&self) -> String {
        format!("{:?}", self.fault)
    }
}

struct Faulty {
    fault: Fault,
    epoch: u64,
    held: Option<ChangelogBatch>,
}

impl Operator for Faulty {
    fn touches(&self, _: InputIndex, _: &ChangelogBatch) -> Result<KeySets> {
        Ok(KeySets::new())
    }
    fn process(
        &mut self,
        ctx: &mut OperatorContext,
        _: InputIndex,
        batch: ChangelogBatch,
    ) -> Result<Progress> {
        if !matches!(self.fault, Fault::Uncounted) {
            ctx.metrics.accepted.add(batch.num_rows() as u64);
        }
        let held = self.held.take();
        let batch = held.map_or(batch.clone(), |held| joined(&held, &batch));
        match self.fault {
            Fault::None | Fault::Uncounted | Fault::Hurries => ctx.emit(batch),
            Fault::Delays if self.epoch == 2 => self.held = Some(batch),
            Fault::Delays => ctx.emit(batch),
            Fault::Loses if self.epoch == 2 => {}
            Fault::Loses => ctx.emit(batch),
            Fault::Repeats => ctx.emit(joined(&batch, &batch)),
            Fault::TakesBack if self.epoch == 2 => {
                let kinds = vec![RowKind::Delete; batch.num_rows()];
                ctx.emit(ChangelogBatch::with_kinds(batch.rows, kinds));
            }
            Fault::TakesBack => ctx.emit(batch),
        }
        Ok(Progress::Done)
    }
    fn end_epoch(
        &mut self,
        _: &mut OperatorContext,
        watermark: Option<Watermark>,
        _: EpochTime,
    ) -> Result<EpochOutcome> {
        self.epoch += 1;
        let ahead = |watermark: Watermark| watermark.saturating_add(3_600_000_000);
        let watermark = match self.fault {
            Fault::Hurries => watermark.map(ahead),
            _ => watermark,
        };
        Ok(EpochOutcome { watermark, wake_at: None, progress: Progress::Done })
    }
    fn resume(&mut self, _: &mut OperatorContext) -> Result<Progress> {
        Ok(Progress::Done)
    }
    fn residency(&mut self) -> Residency<'_> {
        Residency::Stateless
    }

    fn tables(&mut self) -> Vec<&mut dyn StateTable> {
        Vec::new()
    }
    fn restored(&mut self, _: Option<Watermark>) -> Result<()> {
        Ok(())
    }
}

fn joined(first: &ChangelogBatch, second: &ChangelogBatch) -> ChangelogBatch {
    let both = [first, second].map(|batch| batch.rows.clone());
    let rows = arrow::compute::concat_batches(&first.schema(), &both).unwrap();
    let picked: UInt32Array = (0..rows.num_rows() as u32).collect();
    let kinds = |batch: &ChangelogBatch| (0..batch.num_rows()).map(|row| batch.kind(row)).collect::<Vec<_>>();
    let kinds = [kinds(first), kinds(second)].concat();
    ChangelogBatch::with_kinds(rows, kinds).take(&picked).unwrap()
}

/// Puts a faulty operator right behind the source.
fn with_fault(query: &mut PreparedQuery, fault: Fault) {
    let nodes = &mut query.planned.plan.nodes;
    let before = nodes[0].clone();
    for node in &mut nodes[1..] {
        node.inputs.iter_mut().for_each(|input| *input += 1);
    }
    let faulty = FaultyFactory { fault, schema: Arc::clone(&before.schema) };
    let node = StreamNode {
        uid: OperatorUid("faulty".into()),
        kind: NodeKind::Operator(Arc::new(faulty)),
        inputs: vec![0],
        ..before
    };
    nodes.insert(1, node);
}

async fn verdict(sql: &str, fault: Option<Fault>) -> Result<Tally> {
    let settings = [("epoch.rows", "2"), ("parallelism", "1"), ("time-zone", "UTC")];
    let settings = settings.map(|(key, value)| (key.to_string(), value.to_string())).to_vec();
    let engine = Engine::with_options(EngineOptions { settings, ..EngineOptions::default() }).unwrap();
    let session = engine.session();
    session
        .execute(
            "CREATE TABLE t (ts TIMESTAMP(3), k INT NOT NULL, v INT, WATERMARK FOR ts AS ts) WITH ('connector' = 'values',
             'data' = '2024-01-01 10:00:01,1,10\n2024-01-01 10:00:02,2,20\n2024-01-01 10:00:13,1,30
2024-01-01 10:00:14,2,\n2024-01-01 10:00:25,3,50\n2024-01-01 10:00:36,3,60')",
        )
        .await
        .unwrap();
    let source = split_statements(sql).remove(0);
    let mut query = session.prepare(&source).unwrap().remove(0);
    if let Some(fault) = fault {
        with_fault(&mut query, fault);
    }
    judge_query(&session, query).await
}

const ROWS: &str = "SELECT ts, k, v + 1 AS v FROM t WHERE k > 0";
const SUMS: &str = "SELECT s, COUNT(*) FROM (SELECT k, SUM(v) AS s FROM t WHERE k > 0 GROUP BY k) GROUP BY s";
const WINDOWS: &str = "SELECT k, window_end, COUNT(*), SUM(v) FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '10' SECOND)) GROUP BY k, window_end";

async fn found(sql: &str, fault: Fault) -> String {
    match verdict(sql, Some(fault)).await {
        Err(error) => error.to_string(),
        Ok(tally) => panic!("{fault:?} was not found in {sql}: {tally:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn right_plans_are_judged_after_every_epoch() {
    for sql in [ROWS, SUMS, WINDOWS] {
        for fault in [None, Some(Fault::None)] {
            let tally = verdict(sql, fault).await.unwrap();
            assert_eq!(tally, Tally { queries: 1, epochs: 4, passed_over: 0 }, "{sql}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_that_is_right_only_in_the_end_is_found() {
    for sql in [ROWS, SUMS] {
        let text = found(sql, Fault::Delays).await;
        assert!(text.contains("epoch 2") && text.contains("invariant 1"), "{text}");
        assert!(text.contains("only in the batch"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_and_repeated_rows_are_found() {
    for sql in [ROWS, SUMS, WINDOWS] {
        assert!(found(sql, Fault::Loses).await.contains("invariant 1"));
        assert!(found(sql, Fault::Repeats).await.contains("invariant 1"));
        assert!(found(sql, Fault::Uncounted).await.contains("invariant 14"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_changelogs_and_watermarks_are_found() {
    assert!(found(ROWS, Fault::TakesBack).await.contains("invariant 4"));
    assert!(found(ROWS, Fault::Hurries).await.contains("invariant 3"));
    let text = found(WINDOWS, Fault::Hurries).await;
    assert!(text.contains("invariant 3") || text.contains("invariant 1"), "{text}");
}
