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

/// Waits until the job has read so many rows and they are part of a checkpoint.
async fn kept(session: &Session, job: &millpond::Job, rows: u64) {
    while job.metrics().rows_read() < rows {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    session.execute("CHECKPOINT").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_was_removed_does_not_keep_a_job_from_restoring() {
    let dir = tempfile::tempdir().unwrap();
    let files = dir.path().join("in");
    std::fs::create_dir(&files).unwrap();
    let write = |name: &str, text: &str| std::fs::write(files.join(name), text).unwrap();
    write("1.json", "{\"id\":1}\n{\"id\":2}\n");
    write("2.json", "{\"id\":3}\n");
    let script = format!(
        "CREATE TABLE t (id INT) WITH ('connector' = 'filesystem', 'path' = '{0}/in/', 'format' = 'json',
           'source.monitor-interval' = '10 ms');
         CREATE TABLE o (id INT) WITH ('connector' = 'filesystem', 'path' = '{0}/out', 'format' = 'csv');
         INSERT INTO o SELECT id FROM t;",
        dir.path().display()
    );
    let run = async |before: &str| {
        let engine = Engine::open(dir.path().join("data")).unwrap();
        let session = engine.session();
        session.execute(before).await.unwrap();
        let Outcome::Job(job) = session.execute(&script).await.unwrap() else { panic!("an INSERT is a job") };
        (engine, session, job)
    };
    let (engine, session, job) = run("SET 'bad-rows' = 'fail'").await;
    kept(&session, &job, 3).await;
    job.crash().await;
    drop((job, session, engine));
    std::fs::remove_file(files.join("2.json")).unwrap();
    write("3.json", "{\"id\":4}\n{\"id\":5}\n");

    let (engine, session, job) = run("SET 'bad-rows' = 'fail'").await;
    let error = job.wait().await.unwrap_err();
    assert!(error.message().contains("2.json") && error.message().contains("is gone"), "{error}");
    assert!(error.hint().unwrap().contains("'on-missing-file' = 'skip'"), "{error}");
    drop((job, session, engine));

    let (engine, session, job) = run("SET 'on-missing-file' = 'skip'").await;
    kept(&session, &job, 2).await;
    job.crash().await;
    drop((job, session, engine));
    let engine = Engine::open(dir.path().join("data")).unwrap();
    let session = engine.session();
    assert_eq!(rows(&session, "SELECT COUNT(*), COUNT(DISTINCT id), SUM(id) FROM o").await, ["5,5,15"]);
}
