//! A script run again on the same data directory goes on; a finished job is reported.

use millpond::{Engine, Outcome, Rows, Session};

use crate::text::{lines, sorted};

fn script(out: &std::path::Path) -> String {
    format!(
        "CREATE TABLE g (i BIGINT) WITH ('connector' = 'datagen', 'number-of-rows' = '50000',
           'fields.i.kind' = 'sequence', 'fields.i.start' = '1', 'fields.i.end' = '50000');
         CREATE TABLE chosen (i BIGINT) WITH ('connector' = 'filesystem', 'path' = '{0}/chosen', 'format' = 'csv');
         CREATE TABLE sums (k BIGINT, n BIGINT) WITH ('connector' = 'filesystem', 'path' = '{0}/sums', 'format' = 'json');
         SET 'checkpoint.every-rows' = '1000';
         SET 'epoch.rows' = '500';
         INSERT INTO chosen SELECT i FROM g WHERE i % 5 = 0;",
        out.display()
    )
}

async fn rows(session: &Session, sql: &str) -> Vec<String> {
    sorted(&session.query(sql).await.unwrap().batches().await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unfinished_job_goes_on_and_a_finished_one_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let script = script(dir.path());
    let engine = Engine::open(dir.path().join("data")).unwrap();
    let session = engine.session();
    let Outcome::Job(job) = session.execute(&script).await.unwrap() else { panic!("an INSERT is a job") };
    while job.metrics().rows_read() < 5_000 {
        tokio::task::yield_now().await;
    }
    job.crash().await;
    drop((job, session, engine));

    let engine = Engine::open(dir.path().join("data")).unwrap();
    let session = engine.session();
    let Outcome::Job(job) = session.execute(&script).await.unwrap() else { panic!("the job goes on") };
    job.wait().await.unwrap();
    assert_eq!(
        rows(&session, "SELECT COUNT(*), COUNT(DISTINCT i), SUM(i) FROM chosen").await,
        ["10000,10000,250025000"]
    );
    drop((job, session, engine));

    let engine = Engine::open(dir.path().join("data")).unwrap();
    let session = engine.session();
    match session.execute(&script).await.unwrap() {
        Outcome::Done(Some(note)) => assert!(note.contains("finished already"), "{note}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_definition_of_the_same_name_is_refused_with_the_difference() {
    let dir = tempfile::tempdir().unwrap();
    let create = "CREATE TABLE t (a INT, b INT) WITH ('connector' = 'values', 'data' = '1,2')";
    {
        let engine = Engine::open(dir.path()).unwrap();
        engine.session().execute(create).await.unwrap();
    }
    let engine = Engine::open(dir.path()).unwrap();
    let session = engine.session();
    session.execute(create).await.unwrap();
    let error = session.execute(&create.replace("b INT", "b BIGINT")).await.unwrap_err();
    assert!(error.detail().unwrap().contains("b BIGINT"), "{error}");
    let Outcome::Rows(Rows { batches, .. }) = session.execute("SHOW TABLES").await.unwrap() else {
        panic!("rows")
    };
    assert_eq!(lines(&batches), ["t"]);
}
