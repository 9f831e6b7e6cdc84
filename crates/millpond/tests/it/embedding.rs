//! The example that README.md shows, and what a host sees of errors and changes.

use std::sync::Arc;

use millpond::datafusion::arrow::array::{ArrayRef, AsArray};
use millpond::datafusion::arrow::datatypes::{DataType, Float64Type};
use millpond::datafusion::common::{Result as DataFusionResult, ScalarValue};
use millpond::datafusion::logical_expr::function::AccumulatorArgs;
use millpond::datafusion::logical_expr::{Accumulator, AggregateUDF, Volatility, create_udaf};
use millpond::{Engine, EngineOptions, ErrorKind};

use crate::text::lines;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bounded_query_gives_all_its_rows() {
    let engine = Engine::ephemeral().unwrap();
    let session = engine.session();
    session
        .execute("CREATE TABLE t (a INT) WITH ('connector' = 'values', 'data' = '1\n2\n3')")
        .await
        .unwrap();
    let answer = session.query("SELECT a * 2 AS b FROM t ORDER BY b DESC").await.unwrap();
    assert_eq!(lines(&answer.batches().await.unwrap()), ["6", "4", "2"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unbounded_query_gives_changes_until_it_is_dropped() {
    let engine = Engine::ephemeral().unwrap();
    let session = engine.session();
    let create = "CREATE TABLE g (i BIGINT) WITH ('connector' = 'datagen', 'rows-per-second' = '1000', \
                  'fields.i.kind' = 'sequence', 'fields.i.start' = '1', 'fields.i.end' = '1000000')";
    session.execute(create).await.unwrap();
    session
        .execute("CREATE TABLE u (i INT) WITH ('connector' = 'datagen', 'rows-per-second' = '1000')")
        .await
        .unwrap();
    let mut changes = session.query("SELECT i FROM u").await.unwrap().into_changes().unwrap();
    let epoch = changes.next().await.unwrap().expect("datagen goes on for ever");
    assert!(epoch.iter().all(|batch| batch.num_rows() > 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_have_kinds_and_places() {
    let engine = Engine::ephemeral().unwrap();
    let session = engine.session();
    let error = session.query("SELECT *\nFROM nothing").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(error.location().map(|at| at.line), Some(2), "{error}");
    session.execute("CREATE TABLE t (a INT) WITH ('connector' = 'values', 'data' = '1\nx')").await.unwrap();
    let error = session.query("SELECT a FROM t").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Data, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_can_be_stopped_and_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(dir.path().join("data")).unwrap();
    let session = engine.session();
    session
        .execute("CREATE TABLE u (i INT) WITH ('connector' = 'datagen', 'rows-per-second' = '1000')")
        .await
        .unwrap();
    session.execute("CREATE TABLE b (i INT) WITH ('connector' = 'blackhole')").await.unwrap();
    let millpond::Outcome::Job(job) = session.execute("INSERT INTO b SELECT i FROM u").await.unwrap() else {
        panic!("an INSERT is a job")
    };
    assert!(!job.is_bounded());
    let report = job.checkpoint().await.unwrap();
    assert_eq!(report.checkpoint.0, 1);
    job.stop().await.unwrap();
    job.wait().await.unwrap();
    assert!(!job.is_running());
}

/// The product of all values.
#[derive(Debug)]
struct Product(f64);

impl Accumulator for Product {
    fn update_batch(&mut self, values: &[ArrayRef]) -> DataFusionResult<()> {
        self.0 *= values[0].as_primitive::<Float64Type>().iter().flatten().product::<f64>();
        Ok(())
    }
    fn evaluate(&mut self) -> DataFusionResult<ScalarValue> {
        Ok(ScalarValue::from(self.0))
    }
    fn size(&self) -> usize {
        size_of_val(self)
    }
    fn state(&mut self) -> DataFusionResult<Vec<ScalarValue>> {
        Ok(vec![ScalarValue::from(self.0)])
    }
    fn merge_batch(&mut self, states: &[ArrayRef]) -> DataFusionResult<()> {
        self.update_batch(states)
    }
}

fn product() -> AggregateUDF {
    let float = Arc::new(DataType::Float64);
    let accumulator = Arc::new(|_: AccumulatorArgs<'_>| Ok(Box::new(Product(1.0)) as Box<dyn Accumulator>));
    let state = Arc::new(vec![DataType::Float64]);
    create_udaf("product", vec![DataType::Float64], float, Volatility::Immutable, accumulator, state)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aggregate_functions_of_the_host_also_see_rows_that_change() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(dir.path()).unwrap();
    engine.register_aggregate(product());
    let session = engine.session();
    session
        .execute("CREATE TABLE t (k STRING, v INT) WITH ('connector' = 'values', 'data' = 'a,2\na,3\nb,5')")
        .await
        .unwrap();
    session.execute("CREATE VIEW p AS SELECT k, PRODUCT(v) AS p FROM t GROUP BY k").await.unwrap();
    let answer = session.query("SELECT p FROM p ORDER BY k").await.unwrap();
    assert_eq!(lines(&answer.batches().await.unwrap()), ["6.0", "5.0"]);
    let changing = "SELECT PRODUCT(n) FROM (SELECT k, COUNT(*) + 1 AS n FROM t GROUP BY k)";
    let answer = session.query(changing).await.unwrap();
    assert_eq!(lines(&answer.batches().await.unwrap()), ["6.0"]);
    drop((session, engine));
    // The view needs its function before it can exist again.
    let options = EngineOptions {
        data_dir: Some(dir.path().into()),
        aggregates: vec![Arc::new(product())],
        ..EngineOptions::default()
    };
    let session = Engine::with_options(options).unwrap().session();
    let answer = session.query("SELECT p FROM p ORDER BY k").await.unwrap();
    assert_eq!(lines(&answer.batches().await.unwrap()), ["6.0", "5.0"]);
}
