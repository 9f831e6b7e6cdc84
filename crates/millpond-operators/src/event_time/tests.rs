//! Tests of `event_time`.

use arrow::array::{AsArray, Int64Array, TimestampMillisecondArray};
use arrow::datatypes::{DataType, Int64Type, IntervalDayTimeType, TimeUnit};
use datafusion::common::ScalarValue;
use datafusion::logical_expr::Operator as Op;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, Literal};
use millpond_core::random::Random;

use super::*;

const MS: DataType = DataType::Timestamp(TimeUnit::Millisecond, None);

fn column(name: &str, index: usize) -> Expression {
    Arc::new(Column::new(name, index))
}

fn binary(left: Expression, op: Op, right: Expression) -> Expression {
    Arc::new(BinaryExpr::new(left, op, right))
}

/// `WATERMARK FOR ts AS ts - INTERVAL '5' MILLISECOND`, with `hundredth AS 100 / v`.
fn event_time(max_future: Option<i64>) -> EventTime {
    let delay = Literal::new(ScalarValue::IntervalDayTime(Some(IntervalDayTimeType::make_value(0, 5))));
    let hundred = Arc::new(Literal::new(ScalarValue::Int64(Some(100))));
    EventTime {
        columns: vec![column("ts", 1), binary(hundred, Op::Divide, column("v", 0))],
        schema: Arc::new(Schema::new(vec![
            Field::new("ts", MS, true),
            Field::new("hundredth", DataType::Int64, true),
        ])),
        watermark: Some(WatermarkSpec {
            time: column("ts", 1),
            watermark: binary(column("ts", 1), Op::Minus, Arc::new(delay)),
            column: "ts".into(),
            max_future,
        }),
        keyed: false,
    }
}

fn rows(values: &[i64], times: &[Option<i64>]) -> ChangelogBatch {
    let schema =
        Arc::new(Schema::new(vec![Field::new("v", DataType::Int64, false), Field::new("ts", MS, true)]));
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(values.to_vec())),
        Arc::new(TimestampMillisecondArray::from(times.to_vec())),
    ];
    ChangelogBatch::append(RecordBatch::try_new(schema, columns).unwrap())
}

fn at(times: &[i64]) -> ChangelogBatch {
    rows(&vec![1; times.len()], &times.iter().map(|t| Some(*t)).collect::<Vec<_>>())
}

fn tags(batch: &ChangelogBatch) -> Vec<Option<i64>> {
    let tag = |row| Some(batch.late_tag(row)).filter(|tag| *tag != Timestamp::MIN).map(Timestamp::as_millis);
    (0..batch.num_rows()).map(tag).collect()
}

struct Split {
    spec: EventTime,
    state: SplitWatermark,
    metrics: SourceMetrics,
}

impl Split {
    fn new(spec: EventTime) -> Self {
        Self { spec, state: SplitWatermark::default(), metrics: SourceMetrics::default() }
    }
    fn apply(&mut self, batch: &ChangelogBatch) -> (ChangelogBatch, Vec<BadTime>) {
        self.spec.apply(&mut self.state, batch, Timestamp::from_millis(1000), &self.metrics).unwrap()
    }
}

#[test]
fn a_row_at_the_watermark_before_it_is_tagged() {
    let mut split = Split::new(event_time(None));
    let (output, bad) = split.apply(&at(&[10, 6, 5, 20, 15, 16]));
    assert!(bad.is_empty());
    assert_eq!(tags(&output), [None, None, Some(5), None, Some(15), None]);
    assert_eq!(split.state.current, Timestamp::from_millis(15));
}

#[test]
fn no_tags_while_no_row_is_behind() {
    let mut split = Split::new(event_time(None));
    assert!(split.apply(&at(&[10, 8, 12, 30])).0.late.is_none());
}

#[test]
fn tags_do_not_depend_on_batches() {
    for seed in 0..20 {
        let mut random = Random::seeded(seed);
        let times: Vec<i64> = (0..200).map(|i| i + random.below(14) as i64).collect();
        let mut whole = Split::new(event_time(None));
        let expected = tags(&whole.apply(&at(&times)).0);
        let (mut split, mut got, mut rest) = (Split::new(event_time(None)), Vec::new(), times.as_slice());
        while !rest.is_empty() {
            let (batch, after) = rest.split_at((1 + random.below(7) as usize).min(rest.len()));
            got.extend(tags(&split.apply(&at(batch)).0));
            rest = after;
        }
        assert_eq!(got, expected, "seed {seed}");
        assert_eq!(split.state, whole.state);
    }
}

#[test]
fn rows_without_a_usable_time_are_given_back() {
    let mut split = Split::new(event_time(Some(500_000)));
    let batch = rows(&[1, 2, 0, 4, 5], &[Some(10), None, Some(11), Some(1501), Some(1500)]);
    let (output, bad) = split.apply(&batch);
    assert_eq!(bad.iter().map(|b| b.row).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(bad[0].reason.contains("\"ts\" is NULL"), "{:?}", bad[0]);
    assert!(bad[1].reason.contains("/ v"), "{:?}", bad[1]);
    assert!(bad[2].reason.contains("too far ahead"), "{:?}", bad[2]);
    let hundredths: Vec<Option<i64>> = output.rows.column(1).as_primitive::<Int64Type>().iter().collect();
    assert_eq!(hundredths, [Some(100), Some(20)]);
    assert_eq!(split.state.current, Timestamp::from_millis(1495), "a bad time moves no watermark");
    assert_eq!(split.metrics.rejected.value(), 3);
}

#[test]
fn a_null_watermark_moves_nothing() {
    // CASE-like: the watermark is a column of its own, in another precision.
    let micros = DataType::Timestamp(TimeUnit::Microsecond, None);
    let schema = Arc::new(Schema::new(vec![Field::new("ts", MS, true), Field::new("wm", micros, true)]));
    let spec = EventTime {
        columns: vec![column("ts", 0)],
        schema: Arc::new(schema.project(&[0]).unwrap()),
        watermark: Some(WatermarkSpec {
            time: column("ts", 0),
            watermark: column("wm", 1),
            column: "ts".into(),
            max_future: None,
        }),
        keyed: false,
    };
    let columns: Vec<ArrayRef> = vec![
        Arc::new(TimestampMillisecondArray::from(vec![9, 9, 9])),
        Arc::new(arrow::array::TimestampMicrosecondArray::from(vec![None, Some(9_000), None])),
    ];
    let batch = ChangelogBatch::append(RecordBatch::try_new(schema, columns).unwrap());
    assert_eq!(tags(&Split::new(spec).apply(&batch).0), [None, None, Some(9)]);
}

#[test]
fn a_computed_time_is_computed_once_and_watched() {
    let ts: Expression =
        Arc::new(datafusion::physical_expr::expressions::CastExpr::new(column("v", 0), MS, None));
    let delay = Literal::new(ScalarValue::IntervalDayTime(Some(IntervalDayTimeType::make_value(0, 5))));
    let spec = EventTime {
        columns: vec![ts.clone()],
        schema: Arc::new(Schema::new(vec![Field::new("ts", MS, true)])),
        watermark: Some(WatermarkSpec {
            time: ts.clone(),
            watermark: binary(ts, Op::Minus, Arc::new(delay)),
            column: "ts".into(),
            max_future: None,
        }),
        keyed: false,
    };
    let mut split = Split::new(spec);
    assert_eq!(tags(&split.apply(&rows(&[10, 5, 6], &[None; 3])).0), [None, Some(5), None]);
}
