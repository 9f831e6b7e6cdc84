//! Rows per second of COUNT(*), SUM(v), MAX(v) by one BIGINT key, on one thread.
//!
//! ```text
//! cargo run --release --example aggregate_speed
//! ```
#![allow(clippy::print_stdout)]

use std::sync::Arc;

use arrow::array::{Int64Array, RecordBatch, TimestampMillisecondArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use datafusion::physical_expr::expressions::col;
use millpond_core::{
    ChangelogBatch, ChangelogMode, Clock, KeyGroupRange, OperatorMetrics, Result, SystemClock, Timestamp,
};
use millpond_operators::window::bound_type;
use millpond_operators::{
    AggregateCall, AggregateFunction, BuildContext, GroupAggregateFactory, Operator, OperatorContext,
    OperatorFactory, Progress, WindowAggregateFactory, WindowColumn, WindowKind, WindowSpec,
};

const BATCH: usize = 8192;
const ROWS: usize = 16 << 20;

fn main() -> Result<()> {
    for keys in [100u64, 10_000, 100_000, 1_000_000] {
        let batches = batches(keys);
        report("group", keys, group()?, &batches)?;
        report("tumble 10 s", keys, window(WindowKind::Tumble { size: 10_000_000 })?, &batches)?;
        report(
            "hop 10 s / 2 s",
            keys,
            window(WindowKind::Hop { size: 10_000_000, slide: 2_000_000 })?,
            &batches,
        )?;
    }
    Ok(())
}

/// Time runs at 100,000 rows a second, with a second of disorder.
fn batches(keys: u64) -> Vec<ChangelogBatch> {
    let mut seed = 1u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    (0..ROWS / BATCH)
        .map(|batch| {
            let time = |row: usize| (batch * BATCH + row) as i64 / 100;
            let times = TimestampMillisecondArray::from_iter_values((0..BATCH).map(time));
            let ids = Int64Array::from_iter_values((0..BATCH).map(|_| (random() % keys) as i64));
            let values = Int64Array::from_iter_values((0..BATCH).map(|row| row as i64 * 7 % 1000));
            let rows = RecordBatch::try_new(schema(), vec![Arc::new(times), Arc::new(ids), Arc::new(values)]);
            ChangelogBatch::append(rows.expect("the columns fit the schema"))
        })
        .collect()
}

fn report(name: &str, keys: u64, mut operator: Box<dyn Operator>, batches: &[ChangelogBatch]) -> Result<()> {
    let clock = SystemClock;
    let mut ctx = OperatorContext::new(Arc::new(OperatorMetrics::default()));
    let start = clock.now();
    let mut watermark = None;
    for (number, batch) in batches.iter().enumerate() {
        operator.process(&mut ctx, 0, batch.clone())?;
        if number % 64 == 63 {
            watermark = Some(Timestamp::from_millis((number * BATCH) as i64 / 100 - 1000));
            let mut progress = operator.end_epoch(&mut ctx, watermark, clock.now())?.progress;
            ctx.take_output();
            while progress == Progress::More {
                progress = operator.resume(&mut ctx)?;
                ctx.take_output();
            }
            ctx.watermark = watermark;
        }
    }
    let seconds = (clock.now().0 - start.0) as f64 / 1e6;
    let out = ctx.metrics.rows_out.value();
    println!("{name:>15} {keys:>9} keys {:>7.1} M rows/s {out:>9} rows out", ROWS as f64 / seconds / 1e6);
    assert!(watermark.is_some());
    Ok(())
}

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("ts", DataType::Timestamp(TimeUnit::Millisecond, None), false),
        Field::new("k", DataType::Int64, false),
        Field::new("v", DataType::Int64, false),
    ]))
}

fn calls() -> Vec<AggregateCall> {
    let v = || vec![col("v", &schema()).expect("v is a column")];
    let call =
        |function, arguments, name: &str| AggregateCall::new(function, arguments, name, DataType::Int64);
    vec![
        call(AggregateFunction::CountStar, Vec::new(), "n"),
        call(AggregateFunction::Sum, v(), "sum"),
        call(AggregateFunction::Max, v(), "max"),
    ]
}

fn output(first: Vec<Field>) -> SchemaRef {
    let results = ["n", "sum", "max"].map(|name| Field::new(name, DataType::Int64, name != "n"));
    Arc::new(Schema::new(first.into_iter().chain(results).collect::<Vec<_>>()))
}

fn context() -> BuildContext {
    BuildContext { index: 0, parallelism: 1, max_parallelism: 256, key_groups: KeyGroupRange::all(256) }
}

fn group() -> Result<Box<dyn Operator>> {
    let factory = GroupAggregateFactory {
        ttl: None,
        lasting: Vec::new(),
        keys: vec![(col("k", &schema()).expect("k is a column"), "k".into())],
        aggregates: calls(),
        input_schema: schema(),
        schema: output(vec![Field::new("k", DataType::Int64, true)]),
        emit_update_before: true,
        input_mode: ChangelogMode::Append,
    };
    factory.build(context())
}

fn window(kind: WindowKind) -> Result<Box<dyn Operator>> {
    let first = vec![Field::new("k", DataType::Int64, true), Field::new("window_end", bound_type(), false)];
    let factory = WindowAggregateFactory {
        window: WindowSpec { kind, offset: 0, time_zone: None },
        time_column: 0,
        keys: vec![(col("k", &schema()).expect("k is a column"), "k".into())],
        aggregates: calls(),
        input_schema: schema(),
        schema: output(first),
        output: vec![
            WindowColumn::Key(0),
            WindowColumn::WindowEnd,
            WindowColumn::Aggregate(0),
            WindowColumn::Aggregate(1),
            WindowColumn::Aggregate(2),
        ],
    };
    factory.build(context())
}
