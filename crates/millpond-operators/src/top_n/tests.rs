//! Tests of `top_n`.

use super::*;
use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use millpond_core::{ChangelogMode, ErrorKind, KeyGroupRange, OperatorMetrics, Timestamp, random::Random};

use crate::ChangelogFold;

const ALL: KeyGroupRange = KeyGroupRange { start: 0, end: 256 };

fn input_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("k", DataType::Utf8, true),
        Field::new("v", DataType::Int64, true),
        Field::new("id", DataType::Int64, true),
    ]))
}

fn factory(
    function: RankFunction,
    first: u64,
    last: u64,
    emit_rank: bool,
    mode: ChangelogMode,
) -> TopNFactory {
    let mut fields: Vec<Field> = input_schema().fields().iter().map(|field| field.as_ref().clone()).collect();
    if emit_rank {
        fields.push(Field::new("rn", DataType::UInt64, false));
    }
    TopNFactory {
        spec: RankSpec {
            function,
            partition: vec![0],
            order: vec![SortColumn { column: 1, descending: true, nulls_first: false }],
            latest_first: false,
            range: RankRange { first, last: Some(last) },
            input_schema: input_schema(),
            input_mode: mode,
            ttl: None,
        },
        output: RankOutput { columns: vec![0, 1, 2], emit_rank, schema: Arc::new(Schema::new(fields)) },
    }
}

struct Task {
    operator: Box<dyn Operator>,
    ctx: OperatorContext,
}

impl Task {
    fn new(factory: &TopNFactory) -> Self {
        let context = BuildContext { index: 0, parallelism: 1, max_parallelism: 256, key_groups: ALL };
        let operator = factory.build(context).unwrap();
        Self { operator, ctx: OperatorContext::new(Arc::new(OperatorMetrics::default())) }
    }

    fn rows(&mut self, rows: &[Row]) -> Result<()> {
        assert_eq!(self.operator.process(&mut self.ctx, 0, batch(rows))?, Progress::Done);
        Ok(())
    }

    fn end(&mut self) -> Vec<ChangelogBatch> {
        let time = self.ctx.time;
        let outcome = self.operator.end_epoch(&mut self.ctx, Some(Timestamp(7)), time).unwrap();
        assert_eq!(outcome.watermark, Some(Timestamp(7)));
        let mut said = Vec::new();
        let mut progress = outcome.progress;
        loop {
            if let Some(batch) = self.ctx.take_output() {
                assert!(batch.num_rows() <= BATCH_ROWS_MAX);
                assert_ne!(batch.kind(batch.num_rows() - 1), RowKind::UpdateBefore, "a pair is not torn");
                said.push(batch);
            }
            if progress == Progress::Done {
                return said;
            }
            progress = self.operator.resume(&mut self.ctx).unwrap();
        }
    }

    fn said(&mut self) -> Vec<String> {
        self.end().iter().flat_map(lines).collect()
    }

    /// Another task that goes on from this one's snapshot, and how many rows that has.
    fn restored(&mut self, factory: &TopNFactory) -> (Self, usize) {
        let rows = self.operator.tables()[0].freeze_all().unwrap().into_delta().unwrap().upserts;
        let mut task = Self::new(factory);
        task.operator.tables()[0].load(&rows, ALL).unwrap();
        task.operator.restored(None).unwrap();
        (task, rows.num_rows())
    }
}

fn lines(batch: &ChangelogBatch) -> Vec<String> {
    let text = |row: usize| {
        let values = batch.rows.columns().iter().map(|column| match column.is_null(row) {
            true => "NULL".into(),
            false => arrow::util::display::array_value_to_string(column, row).unwrap(),
        });
        let values: Vec<String> = values.collect();
        format!("{} {}", batch.kind(row).symbol(), values.join("|"))
    };
    (0..batch.num_rows()).map(text).collect()
}

/// Kind, k, v, id.
type Row = (RowKind, &'static str, Option<i64>, i64);

fn batch(rows: &[Row]) -> ChangelogBatch {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.1))),
        Arc::new(Int64Array::from_iter(rows.iter().map(|row| row.2))),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.3))),
    ];
    let kinds: Vec<RowKind> = rows.iter().map(|row| row.0).collect();
    ChangelogBatch::with_kinds(RecordBatch::try_new(input_schema(), columns).unwrap(), kinds)
}

const I: RowKind = RowKind::Insert;
const D: RowKind = RowKind::Delete;

#[test]
fn rows_replace_each_other_by_rank() {
    let factory = factory(RankFunction::RowNumber, 1, 2, true, ChangelogMode::Append);
    let mut task = Task::new(&factory);
    task.rows(&[(I, "a", Some(1), 1), (I, "a", None, 2), (I, "b", Some(5), 3)]).unwrap();
    assert_eq!(task.said(), ["+I a|1|1|1", "+I a|NULL|2|2", "+I b|5|3|1"]);
    task.rows(&[(I, "a", Some(9), 4), (I, "a", None, 5)]).unwrap();
    assert_eq!(task.said(), ["-U a|1|1|1", "+U a|9|4|1", "-U a|NULL|2|2", "+U a|1|1|2"]);
    task.rows(&[(I, "a", Some(1), 6)]).unwrap();
    assert!(task.said().is_empty(), "of equal rows the first to come stays");
}

#[test]
fn without_the_rank_only_comings_and_goings_are_said() {
    let factory = factory(RankFunction::RowNumber, 1, 2, false, ChangelogMode::Append);
    let mut task = Task::new(&factory);
    task.rows(&[(I, "a", Some(1), 1), (I, "a", Some(2), 2)]).unwrap();
    assert_eq!(task.said(), ["+I a|2|2", "+I a|1|1"]);
    task.rows(&[(I, "a", Some(9), 3)]).unwrap();
    assert_eq!(task.said(), ["-D a|1|1", "+I a|9|3"]);
}

#[test]
fn a_row_moves_up_when_one_before_it_goes() {
    let factory = factory(RankFunction::RowNumber, 1, 1, false, ChangelogMode::Retract);
    let mut task = Task::new(&factory);
    task.rows(&[(I, "a", Some(1), 1), (I, "a", Some(2), 2), (I, "a", Some(2), 2)]).unwrap();
    assert_eq!(task.said(), ["+I a|2|2"]);
    task.rows(&[(D, "a", Some(2), 2)]).unwrap();
    assert!(task.said().is_empty(), "an equal row stands in its place");
    task.rows(&[(D, "a", Some(2), 2)]).unwrap();
    assert_eq!(task.said(), ["-U a|2|2", "+U a|1|1"]);
    task.rows(&[(D, "a", Some(1), 1)]).unwrap();
    assert_eq!(task.said(), ["-D a|1|1"]);
    assert_eq!(task.operator.tables()[0].rows(), 0, "nothing is left of an empty partition");
    let error = task.rows(&[(D, "a", Some(1), 1)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
}

#[test]
fn appended_rows_behind_the_last_rank_are_not_kept() {
    for function in [RankFunction::RowNumber, RankFunction::Rank, RankFunction::DenseRank] {
        let factory = factory(function, 1, 3, true, ChangelogMode::Append);
        let mut task = Task::new(&factory);
        for _ in 0..3 {
            let rows: Vec<Row> = (0..1000).map(|v| (I, "a", Some(v), v)).collect();
            task.rows(&rows).unwrap();
            task.end();
        }
        let expected = if function == RankFunction::DenseRank { 9 } else { 3 };
        assert_eq!(task.operator.tables()[0].rows(), expected, "{function}");
    }
}

#[test]
fn large_changes_come_in_bounded_batches() {
    let factory = factory(RankFunction::RowNumber, 1, 20_000, true, ChangelogMode::Append);
    let mut task = Task::new(&factory);
    let rows: Vec<Row> = (0..20_000).map(|v| (I, "a", Some(v), v)).collect();
    task.rows(&rows).unwrap();
    assert_eq!(task.end().iter().map(ChangelogBatch::num_rows).sum::<usize>(), 20_000);
    task.rows(&[(I, "a", Some(50_000), 0)]).unwrap();
    assert_eq!(task.end().iter().map(ChangelogBatch::num_rows).sum::<usize>(), 40_000);
}

/// The rows that rank within the range, as SQL defines it.
fn expected(factory: &TopNFactory, rows: &[Row]) -> Vec<String> {
    let mut partitions: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    rows.iter().for_each(|row| partitions.entry(row.1).or_default().push(row));
    let mut lines = Vec::new();
    for rows in partitions.values_mut() {
        // Stable: arrival decides between equals.
        rows.sort_by_key(|row| std::cmp::Reverse(row.2));
        for (place, row) in rows.iter().enumerate() {
            let better = rows.iter().filter(|other| other.2 > row.2);
            let rank = match factory.spec.function {
                RankFunction::RowNumber => place as u64 + 1,
                RankFunction::Rank => better.count() as u64 + 1,
                RankFunction::DenseRank => {
                    better.map(|other| other.2).collect::<std::collections::BTreeSet<_>>().len() as u64 + 1
                }
            };
            let range = factory.spec.range;
            if rank >= range.first && range.last.is_none_or(|last| rank <= last) {
                let value = row.2.map_or("NULL".into(), |v| v.to_string());
                let rank = if factory.output.emit_rank { format!("|{rank}") } else { String::new() };
                lines.push(format!("+I {}|{value}|{}{rank}", row.1, row.3));
            }
        }
    }
    lines.sort();
    lines
}

/// Random rows come and go; after each epoch the folded changes are what SQL says, also across
/// snapshots.
#[test]
fn every_epoch_gives_what_sql_says() {
    let functions = [RankFunction::RowNumber, RankFunction::Rank, RankFunction::DenseRank];
    for seed in 0..120 {
        let mut random = Random::seeded(seed);
        let mode = if seed % 2 == 0 { ChangelogMode::Append } else { ChangelogMode::Retract };
        let first = 1 + random.below(3);
        let last = first + random.below(3);
        let function = functions[random.below(3) as usize];
        let factory = factory(function, first, last, random.below(2) == 0, mode);
        let mut task = Task::new(&factory);
        let mut fold = ChangelogFold::new(factory.schema());
        let mut live: Vec<Row> = Vec::new();
        for _ in 0..30 {
            for _ in 0..random.below(3) {
                let changes = random_changes(&mut random, mode, &mut live);
                task.rows(&changes).unwrap();
            }
            task.end().iter().for_each(|batch| fold.add(batch).unwrap());
            let mut actual: Vec<String> = fold
                .batches()
                .unwrap()
                .into_iter()
                .flat_map(|rows| lines(&ChangelogBatch::append(rows)))
                .collect();
            actual.sort();
            assert_eq!(actual, expected(&factory, &live), "seed {seed} {}", factory.describe());
            if random.below(4) == 0 {
                task = task.restored(&factory).0;
            }
        }
    }
}

fn random_changes(random: &mut Random, mode: ChangelogMode, live: &mut Vec<Row>) -> Vec<Row> {
    let mut changes = Vec::new();
    for _ in 0..random.below(8) {
        if mode == ChangelogMode::Retract && !live.is_empty() && random.below(3) == 0 {
            let row = live.remove(random.below(live.len() as u64) as usize);
            // Of rows that are wholly equal the youngest goes.
            if let Some(twin) = live.iter().rposition(|other| other == &row) {
                let twin = live.remove(twin);
                let place = live.iter().position(|other| other == &row).unwrap_or(live.len());
                live.insert(place, twin);
            }
            changes.push((D, row.1, row.2, row.3));
        } else {
            let key = ["a", "b", "c"][random.below(3) as usize];
            let value = (random.below(6) > 0).then(|| random.below(5) as i64);
            let row = (I, key, value, random.below(1000) as i64);
            live.push(row);
            changes.push(row);
        }
    }
    changes
}

#[test]
fn the_latest_of_equal_rows_can_be_the_first() {
    let mut factory = factory(RankFunction::RowNumber, 1, 1, false, ChangelogMode::Append);
    factory.spec.latest_first = true;
    let mut task = Task::new(&factory);
    task.rows(&[(I, "a", Some(1), 1), (I, "a", Some(1), 2), (I, "a", Some(0), 3)]).unwrap();
    assert_eq!(task.said(), ["+I a|1|2"]);
    let (mut task, rows) = task.restored(&factory);
    assert_eq!(rows, 1);
    task.rows(&[(I, "a", Some(1), 4)]).unwrap();
    assert_eq!(task.said(), ["-U a|1|2", "+U a|1|4"]);
    assert_eq!(task.end().len(), 0);
    let ids = task.operator.tables()[0].freeze_all().unwrap().into_delta().unwrap().upserts;
    assert_eq!(ids.column(3).as_primitive::<Int64Type>().values(), &[4]);
}

#[test]
fn a_partition_that_nothing_changes_is_forgotten() {
    let mut factory = factory(RankFunction::RowNumber, 1, 1, false, ChangelogMode::Retract);
    factory.spec.ttl = Some(160);
    let mut task = Task::new(&factory);
    task.ctx.time = Timestamp(0);
    task.rows(&[(I, "a", Some(1), 1), (I, "b", Some(1), 2)]).unwrap();
    assert_eq!(task.said().len(), 2);
    let mut task = task.restored(&factory).0;
    task.ctx.time = Timestamp(100);
    task.rows(&[(I, "b", Some(2), 3)]).unwrap();
    assert_eq!(task.said(), ["-U b|1|2", "+U b|2|3"]);
    task.ctx.time = Timestamp(200);
    assert!(task.said().is_empty(), "forgotten without a word");
    assert_eq!(task.operator.tables()[0].rows(), 2);
    task.rows(&[(D, "a", Some(1), 1), (D, "b", Some(2), 3)]).unwrap();
    assert_eq!(task.said(), ["-U b|2|3", "+U b|1|2"], "what is forgotten cannot be taken back");
    task.rows(&[(I, "a", Some(5), 4)]).unwrap();
    assert_eq!(task.said(), ["+I a|5|4"]);
}
