//! Tests of `sink_materialize`.

use super::*;
use arrow::array::StringArray;
use arrow::util::display::array_value_to_string;
use millpond_core::{KeyGroupRange, OperatorMetrics, Timestamp};

const ALL: KeyGroupRange = KeyGroupRange { start: 0, end: 256 };

struct Task {
    operator: Box<dyn Operator>,
    ctx: OperatorContext,
}

impl Task {
    fn new(conflict: Conflict) -> Self {
        let field = |name: &str, data_type| Field::new(name, data_type, true);
        let schema = Schema::new(vec![field("v", DataType::Utf8), field("id", DataType::Int64)]);
        let factory = SinkMaterializeFactory { schema: Arc::new(schema), keys: vec![1], conflict };
        let context = BuildContext { index: 0, parallelism: 1, max_parallelism: 256, key_groups: ALL };
        let operator = factory.build(context).unwrap();
        Self { operator, ctx: OperatorContext::new(Arc::new(OperatorMetrics::default())) }
    }

    /// Rows as `+1a`, `-1a`: a sign, a one-digit key, the value.
    fn try_epoch(&mut self, batches: &[&str]) -> Result<String> {
        for batch in batches {
            self.operator.process(&mut self.ctx, 0, rows(batch))?;
        }
        let mut progress = self.operator.end_epoch(&mut self.ctx, None, Timestamp(0))?.progress;
        let mut said = Vec::new();
        loop {
            said.extend(self.ctx.take_output().iter().flat_map(show));
            if progress == Progress::Done {
                return Ok(said.join(" "));
            }
            progress = self.operator.resume(&mut self.ctx)?;
        }
    }

    fn epoch(&mut self, batches: &[&str]) -> String {
        self.try_epoch(batches).unwrap()
    }

    fn state(&mut self) -> RecordBatch {
        self.operator.tables()[0].freeze_all().unwrap().into_delta().unwrap().upserts
    }

    /// Another task with the same state.
    fn again(&mut self, conflict: Conflict) -> Self {
        let mut again = Task::new(conflict);
        again.operator.tables()[0].load(&self.state(), ALL).unwrap();
        again.operator.restored(None).unwrap();
        again
    }
}

fn rows(text: &str) -> ChangelogBatch {
    let rows: Vec<&str> = text.split(' ').collect();
    let kind = |row: &&str| if row.starts_with('+') { RowKind::Insert } else { RowKind::Delete };
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("v", Arc::new(rows.iter().map(|row| Some(row[2..].to_string())).collect::<StringArray>())),
        ("id", Arc::new(rows.iter().map(|row| row[1..2].parse::<i64>().ok()).collect::<Int64Array>())),
    ];
    let kinds: Vec<RowKind> = rows.iter().map(kind).collect();
    let columns = columns.into_iter().map(|(name, column)| (name, column, true));
    ChangelogBatch::with_kinds(RecordBatch::try_from_iter_with_nullable(columns).unwrap(), kinds)
}

fn show(batch: &ChangelogBatch) -> Vec<String> {
    let cell = |column: usize, row: usize| array_value_to_string(batch.rows.column(column), row).unwrap();
    (0..batch.num_rows())
        .map(|row| format!("{}{}{}", batch.kind(row).symbol(), cell(1, row), cell(0, row)))
        .collect()
}

#[test]
fn the_new_row_may_come_before_the_old_one_goes() {
    for epoch in [&["+1b", "-1a"][..], &["-1a", "+1b"], &["+1b -1a"]] {
        let mut task = Task::new(Conflict::Deduplicate);
        assert_eq!(task.epoch(&["+1a"]), "+I1a");
        assert_eq!(task.epoch(epoch), "-U1a +U1b");
        assert_eq!(task.epoch(&["-1b"]), "-D1b");
        assert_eq!(task.state().num_rows(), 0);
    }
}

#[test]
fn within_an_epoch_a_row_may_be_taken_back_before_it_comes() {
    let mut task = Task::new(Conflict::Error);
    assert_eq!(task.epoch(&["-1a -1a", "+1a +1b +1a"]), "+I1b");
    let error = task.try_epoch(&["-2x"]).unwrap_err();
    assert!(error.detail().unwrap().contains("(2)"), "{error}");
}

#[test]
fn of_several_rows_the_clause_says_which_is_the_sinks() {
    let mut last = Task::new(Conflict::Deduplicate);
    assert_eq!(last.epoch(&["+1a"]), "+I1a");
    assert_eq!(last.epoch(&["+1b +1c"]), "-U1a +U1c");
    assert_eq!(last.epoch(&["-1b"]), "", "a row that is not the sink's goes");
    assert_eq!(last.epoch(&["-1c"]), "-U1c +U1a", "the one before it comes back");
    let mut first = Task::new(Conflict::Nothing);
    assert_eq!(first.epoch(&["+1a"]), "+I1a");
    assert_eq!(first.epoch(&["+1b +1c"]), "");
    assert_eq!(first.epoch(&["-1a"]), "-U1a +U1b");
    let mut error = Task::new(Conflict::Error);
    assert_eq!(error.epoch(&["+1a +2a"]), "+I1a +I2a");
    assert_eq!(error.epoch(&["+1b -1a"]), "-U1a +U1b", "no conflict at the end of the epoch");
    assert!(error.try_epoch(&["+2b"]).unwrap_err().detail().unwrap().contains("(2)"));
}

#[test]
fn equal_rows_are_told_apart_by_their_number() {
    let mut task = Task::new(Conflict::Deduplicate);
    assert_eq!(task.epoch(&["+1a +1a"]), "+I1a");
    assert_eq!(task.epoch(&["-1a"]), "");
    assert_eq!(task.epoch(&["-1a"]), "-D1a");
}

#[test]
fn candidates_are_found_again_in_their_order() {
    let mut task = Task::new(Conflict::Deduplicate);
    task.epoch(&["+1a +1b +2x"]);
    task.epoch(&["+1c -1a +1d"]);
    let mut again = task.again(Conflict::Deduplicate);
    assert_eq!(again.epoch(&["-1d +2y"]), "-U1d +U1c -U2x +U2y");
    assert_eq!(again.epoch(&["+1e"]), "-U1c +U1e");
    assert_eq!(again.again(Conflict::Deduplicate).epoch(&["-1e -1c"]), "-U1e +U1b");
}
