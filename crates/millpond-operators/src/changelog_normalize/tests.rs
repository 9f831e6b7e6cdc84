//! Tests of `changelog_normalize`.

use super::*;
use arrow::array::{Int64Array, StringArray};
use arrow::util::display::array_value_to_string;
use millpond_core::{KeyGroupRange, OperatorMetrics, Timestamp};

const ALL: KeyGroupRange = KeyGroupRange { start: 0, end: 256 };

fn schema() -> SchemaRef {
    let field = |name: &str, data_type| Field::new(name, data_type, true);
    Arc::new(Schema::new(vec![field("v", DataType::Utf8), field("id", DataType::Int64)]))
}

struct Task {
    operator: Box<dyn Operator>,
    ctx: OperatorContext,
}

impl Task {
    fn new(key_groups: KeyGroupRange) -> Self {
        let factory = ChangelogNormalizeFactory { schema: schema(), keys: vec![1] };
        let context = BuildContext { index: 0, parallelism: 1, max_parallelism: 256, key_groups };
        let operator = factory.build(context).unwrap();
        Self { operator, ctx: OperatorContext::new(Arc::new(OperatorMetrics::default())) }
    }

    /// Rows as `+1a`, `-1`: a sign, a one-digit key, the value.
    fn epoch(&mut self, batches: &[&str]) -> String {
        for batch in batches {
            self.operator.process(&mut self.ctx, 0, rows(batch)).unwrap();
        }
        let mut progress =
            self.operator.end_epoch(&mut self.ctx, Some(Timestamp(7)), Timestamp(0)).unwrap().progress;
        let mut said = Vec::new();
        loop {
            said.extend(self.ctx.take_output().iter().flat_map(show));
            if progress == Progress::Done {
                return said.join(" ");
            }
            progress = self.operator.resume(&mut self.ctx).unwrap();
        }
    }

    fn state(&mut self) -> RecordBatch {
        self.operator.tables()[0].freeze_all().unwrap().into_delta().unwrap().upserts
    }
}

fn rows(text: &str) -> ChangelogBatch {
    let rows: Vec<&str> = text.split(' ').collect();
    let kind = |row: &&str| if row.starts_with('+') { RowKind::UpdateAfter } else { RowKind::Delete };
    let value = |row: &&str| (row.len() > 2).then(|| row[2..].to_string());
    let columns: Vec<ArrayRef> = vec![
        Arc::new(rows.iter().map(value).collect::<StringArray>()),
        Arc::new(rows.iter().map(|row| row[1..2].parse::<i64>().ok()).collect::<Int64Array>()),
    ];
    let kinds: Vec<RowKind> = rows.iter().map(kind).collect();
    ChangelogBatch::with_kinds(RecordBatch::try_new(schema(), columns).unwrap(), kinds)
}

fn show(batch: &ChangelogBatch) -> Vec<String> {
    let cell = |column: usize, row: usize| array_value_to_string(batch.rows.column(column), row).unwrap();
    (0..batch.num_rows())
        .map(|row| format!("{}{}{}", batch.kind(row).symbol(), cell(1, row), cell(0, row)))
        .collect()
}

#[test]
fn rows_replace_each_other_by_key() {
    let mut task = Task::new(ALL);
    assert_eq!(task.epoch(&["+1a +2b"]), "+I1a +I2b");
    assert_eq!(task.epoch(&["+1c"]), "-U1a +U1c");
    assert_eq!(task.epoch(&["-1"]), "-D1c", "of a deleted row only the key is known");
    assert_eq!(task.epoch(&["+1d"]), "+I1d");
}

#[test]
fn what_comes_twice_says_nothing() {
    let mut task = Task::new(ALL);
    task.epoch(&["+1a"]);
    assert_eq!(task.epoch(&["+1a", "+1a"]), "");
    assert_eq!(task.epoch(&["-2", "-3z"]), "", "deletes of what is not there");
    assert_eq!(task.epoch(&["-1", "-1"]), "-D1a");
    assert_eq!(task.epoch(&["-1"]), "");
    assert_eq!(task.state().num_rows(), 0, "a key without a row leaves no state");
}

#[test]
fn the_last_change_of_an_epoch_wins_whatever_its_batches() {
    for batches in [&["+1a -1 +1b +1c -2 +2x -2"][..], &["+1a -1", "+1b", "+1c -2", "+2x", "-2"]] {
        let mut task = Task::new(ALL);
        assert_eq!(task.epoch(batches), "+I1c");
        assert_eq!(task.epoch(&["+1z", "+1c"]), "", "back to what it was");
        assert_eq!(task.epoch(&["-1 +1c"]), "");
        assert_eq!(task.epoch(&["+1"]), "-U1c +U1", "a value becomes NULL");
    }
}

#[test]
fn state_is_found_again_by_the_tasks_that_own_it() {
    let mut task = Task::new(ALL);
    task.epoch(&["+1a +2b +3c +4d +5e +6f"]);
    let state = task.state();
    let mut total = 0;
    for index in 0..2 {
        let range = KeyGroupRange::of_task(index, 2, 256);
        let mut part = Task::new(range);
        part.operator.tables()[0].load(&state, range).unwrap();
        total += part.state().num_rows();
    }
    assert_eq!(total, 6);
    let mut whole = Task::new(ALL);
    whole.operator.tables()[0].load(&state, ALL).unwrap();
    assert_eq!(whole.epoch(&["-4 +5e +6g"]), "-D4d -U6f +U6g");
}

#[test]
fn many_keys_leave_in_bounded_batches() {
    let factory = ChangelogNormalizeFactory { schema: schema(), keys: vec![1] };
    let context = BuildContext { index: 0, parallelism: 1, max_parallelism: 256, key_groups: ALL };
    let mut operator = factory.build(context).unwrap();
    let mut ctx = OperatorContext::new(Arc::new(OperatorMetrics::default()));
    let total = 3 * BATCH_ROWS_MAX as i64;
    let columns: Vec<ArrayRef> = vec![
        Arc::new((0..total).map(|_| Some("x")).collect::<StringArray>()),
        Arc::new((0..total).map(Some).collect::<Int64Array>()),
    ];
    let batch = ChangelogBatch::append(RecordBatch::try_new(schema(), columns).unwrap());
    operator.process(&mut ctx, 0, batch).unwrap();
    let mut progress = operator.end_epoch(&mut ctx, None, Timestamp(0)).unwrap().progress;
    let mut rows = 0;
    loop {
        let batch = ctx.take_output().unwrap();
        assert!(batch.num_rows() <= BATCH_ROWS_MAX);
        rows += batch.num_rows();
        if progress == Progress::Done {
            break;
        }
        progress = operator.resume(&mut ctx).unwrap();
    }
    assert_eq!(rows, total as usize);
}
