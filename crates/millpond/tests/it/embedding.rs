//! The example that README.md shows, and what a host sees of errors and changes.

use millpond::{Engine, ErrorKind};

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
