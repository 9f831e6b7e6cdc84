//! A job's state outlives the job, its query and its parallelism: savepoints, `restore.from`,
//! EXPLAIN RESTORE, and what of checkpoints can be looked at and steered by SQL.

use std::path::Path;

use millpond::{Engine, Job, Outcome, Rows, Session, TextFormat};

use crate::text::sorted;

fn tables(dir: &Path) -> String {
    format!(
        "CREATE TABLE numbers (i BIGINT) WITH ('connector' = 'filesystem', 'path' = '{0}/in',
           'format' = 'csv', 'csv.header' = 'false', 'source.monitor-interval' = '1 h');
         CREATE TABLE counts (k BIGINT, n BIGINT) WITH ('connector' = 'blackhole');
         CREATE TABLE chosen (i BIGINT) WITH ('connector' = 'filesystem', 'path' = '{0}/chosen', 'format' = 'csv');
         SET 'checkpoint.interval' = '0';",
        dir.display()
    )
}

const COUNTING: &str = "INSERT INTO counts SELECT i % 3, COUNT(*) FROM numbers GROUP BY i % 3";

fn put(dir: &Path, name: &str, numbers: &[i64]) {
    std::fs::create_dir_all(dir.join("in")).unwrap();
    let text: String = numbers.iter().map(|n| format!("{n}\n")).collect();
    std::fs::write(dir.join("in").join(name), text).unwrap();
}

async fn start(session: &Session, sql: &str) -> Job {
    match session.execute(sql).await.unwrap() {
        Outcome::Job(job) => job,
        other => panic!("{other:?}"),
    }
}

async fn shown(session: &Session, sql: &str) -> Vec<Vec<String>> {
    match session.execute(sql).await.unwrap() {
        Outcome::Rows(rows) => texts(&rows),
        other => panic!("{other:?}"),
    }
}

fn texts(rows: &Rows) -> Vec<Vec<String>> {
    let format = TextFormat::display("UTC".parse().unwrap());
    let mut lines = Vec::new();
    for batch in &rows.batches {
        let columns: Vec<_> =
            batch.columns().iter().map(|column| format.formatter(column).unwrap()).collect();
        for row in 0..batch.num_rows() {
            let value = |column: &millpond::ColumnText| {
                let mut text = String::new();
                if !column.is_null(row) {
                    column.write(row, &mut text);
                }
                text
            };
            lines.push(columns.iter().map(value).collect());
        }
    }
    lines
}

async fn failure(session: &Session, sql: &str) -> String {
    let error = session.execute(sql).await.unwrap_err();
    format!("{error}")
}

/// The uid of the job's aggregate in its newest checkpoint.
async fn aggregate(session: &Session, folder: &str) -> String {
    let described = shown(session, &format!("DESCRIBE CHECKPOINT '{folder}'")).await;
    let found = described.iter().find(|row| row[1].contains("Aggregate"));
    found.unwrap_or_else(|| panic!("{described:?}"))[0].clone()
}

async fn state(session: &Session, job: u64, uid: &str) -> Vec<String> {
    let sql = format!("SELECT * FROM checkpoint_state('{job}', '{uid}')");
    sorted(&session.query(&sql).await.unwrap().batches().await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_query_keeps_the_state_of_its_savepoint_at_another_parallelism() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "a.csv", &[1, 2, 3, 4]);
    let engine = Engine::open(dir.path().join("data")).unwrap();
    let session = engine.session();
    session.execute(&tables(dir.path())).await.unwrap();
    session.execute("SET 'parallelism' = '2'").await.unwrap();
    let job = start(&session, COUNTING).await;
    job.end_epoch().await.unwrap();
    let saved = dir.path().join("saved");
    let stopped = shown(&session, &format!("STOP JOB 1 WITH SAVEPOINT '{}'", saved.display())).await;
    assert_eq!(stopped[0][2], saved.display().to_string());
    drop((job, session, engine));
    // The folder is moved, and the engine that made it is gone.
    let moved = dir.path().join("moved");
    std::fs::rename(&saved, &moved).unwrap();
    std::fs::remove_dir_all(dir.path().join("data")).unwrap();
    put(dir.path(), "b.csv", &[4, 5, -7]);

    let engine = Engine::open(dir.path().join("data")).unwrap();
    let session = engine.session();
    session.execute(&tables(dir.path())).await.unwrap();
    session.execute("SET 'parallelism' = '3'").await.unwrap();
    let changed = "INSERT INTO counts SELECT i % 3, COUNT(*) FROM numbers WHERE i > 0 GROUP BY i % 3";
    let place = moved.display().to_string();
    let explained = shown(&session, &format!("EXPLAIN RESTORE FROM '{place}' {changed}")).await;
    let fates: Vec<&str> = explained.iter().map(|row| row[3].split(',').next().unwrap()).collect();
    assert_eq!(fates, ["kept", "kept", "kept"], "{explained:?}");
    assert!(explained[1][3].starts_with("kept, from "), "{explained:?}");
    session.execute(&format!("SET 'restore.from' = '{place}'")).await.unwrap();
    let job = start(&session, changed).await;
    job.end_epoch().await.unwrap();
    session.execute("CHECKPOINT").await.unwrap();
    let own = dir.path().join("data/jobs/job-1").display().to_string();
    let uid = aggregate(&session, &own).await;
    assert_eq!(state(&session, 1, &uid).await.len(), 3);
    assert!(state(&session, 1, &uid).await.iter().any(|row| row.starts_with("1,3")), "1, 4 and 4 again");
    // What cannot be kept is listed beforehand, and refused unless its loss is allowed.
    let other = "INSERT INTO counts SELECT i % 3, SUM(i) FROM numbers GROUP BY i % 3";
    let explained = shown(&session, &format!("EXPLAIN RESTORE FROM '{place}' {other}")).await;
    assert!(explained.iter().any(|row| row[3].starts_with("lost: ")), "{explained:?}");
    let job = start(&session, other).await;
    let refused = job.wait().await.unwrap_err();
    assert!(refused.message().contains("has state of"), "{refused}");
    session.execute("SET 'restore.allow-non-restored-state' = 'true'").await.unwrap();
    let job = start(&session, other).await;
    job.end_epoch().await.unwrap();
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn savepoints_are_the_users_and_wrong_ones_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "a.csv", &[1, 2]);
    let engine = Engine::open(dir.path().join("data")).unwrap();
    let session = engine.session();
    session.execute(&tables(dir.path())).await.unwrap();
    let job = start(&session, "INSERT INTO chosen SELECT i FROM numbers").await;
    job.end_epoch().await.unwrap();
    let folder = dir.path().join("s");
    let create = format!("CREATE SAVEPOINT '{}' FOR JOB 1", folder.display());
    assert_eq!(shown(&session, &create).await[0][..2], ["1", "1"]);
    assert!(failure(&session, &create).await.contains("is not empty"));
    assert!(failure(&session, "CREATE SAVEPOINT '/x' FOR JOB 9").await.contains("there is no job 9"));
    let remote = failure(&session, "CREATE SAVEPOINT 'ftp://b/x' FOR JOB 1").await;
    assert!(remote.contains("there is no object store \"ftp\""), "{remote}");
    // Without a folder: below the data directory. It is the newest one, hence `latest`.
    let stopped = shown(&session, "STOP JOB 1 WITH SAVEPOINT").await;
    assert!(stopped[0][2].ends_with("data/savepoints/savepoint-job-1-2"), "{stopped:?}");
    session.execute("SET 'job.name' = 'second'; SET 'restore.from' = 'latest'").await.unwrap();
    put(dir.path(), "b.csv", &[3]);
    let job = start(&session, "INSERT INTO chosen SELECT i FROM numbers").await;
    job.end_epoch().await.unwrap();
    session.execute("STOP JOB 2").await.unwrap();
    let rows = session.query("SELECT i FROM chosen").await;
    assert_eq!(sorted(&rows.unwrap().batches().await.unwrap()), ["1", "2", "3"]);
    // The savepoint stays whatever is retained, and a damaged one is named with its file.
    std::fs::write(folder.join("metadata.json"), "{}").unwrap();
    session
        .execute(&format!("SET 'job.name' = 'third'; SET 'restore.from' = '{}'", folder.display()))
        .await
        .unwrap();
    let job = start(&session, "INSERT INTO chosen SELECT i FROM numbers").await;
    let refused = format!("{}", job.wait().await.unwrap_err());
    assert!(refused.contains("restore.from") && refused.contains("metadata is cut short"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_job_closes_its_windows_and_is_finished() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(dir.path().join("data")).unwrap();
    let session = engine.session();
    let script = format!(
        "CREATE TABLE e (at TIMESTAMP(3), WATERMARK FOR at AS at) WITH ('connector' = 'filesystem',
           'path' = '{0}/in', 'format' = 'csv', 'csv.header' = 'false', 'source.monitor-interval' = '1 h');
         CREATE TABLE w (e TIMESTAMP(3), n BIGINT) WITH ('connector' = 'filesystem', 'path' = '{0}/w', 'format' = 'csv');
         INSERT INTO w SELECT window_end, COUNT(*)
           FROM TABLE(TUMBLE(TABLE e, DESCRIPTOR(at), INTERVAL '1' MINUTE)) GROUP BY window_start, window_end;",
        dir.path().display()
    );
    std::fs::create_dir_all(dir.path().join("in")).unwrap();
    std::fs::write(dir.path().join("in/a.csv"), "2024-01-01 10:00:10\n2024-01-01 10:01:20\n").unwrap();
    let job = start(&session, &script).await;
    job.end_epoch().await.unwrap();
    session.execute("STOP JOB 1 WITH DRAIN").await.unwrap();
    let rows = session.query("SELECT CAST(n AS INT) FROM w").await;
    assert_eq!(sorted(&rows.unwrap().batches().await.unwrap()), ["1", "1"], "both windows are closed");
    assert_eq!(shown(&session, "SHOW JOBS").await[0][2], "FINISHED");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_job_is_altered_and_its_refusals_are_shown() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "a.csv", &[1]);
    let engine = Engine::open(dir.path().join("data")).unwrap();
    let session = engine.session();
    session.execute(&tables(dir.path())).await.unwrap();
    session.execute("SET 'checkpoint.trigger' = 'MANUAL'").await.unwrap();
    let job = start(&session, COUNTING).await;
    job.end_epoch().await.unwrap();
    session
        .execute("ALTER JOB 1 SET ('checkpoint.interval' = '20', 'checkpoint.retained' = '2')")
        .await
        .unwrap();
    while job.checkpoint_events().is_empty() {
        tokio::task::yield_now().await;
    }
    let refused = &shown(&session, "SHOW CHECKPOINTS").await[0];
    assert!(refused[3].starts_with("REFUSED: 'checkpoint.trigger' is MANUAL"), "{refused:?}");
    assert_eq!((refused[1].as_str(), refused[2].as_str()), ("", "interval"));
    session.execute("ALTER JOB 1 SET ('checkpoint.trigger' = 'ALWAYS')").await.unwrap();
    while job.checkpoints().len() < 4 {
        tokio::task::yield_now().await;
    }
    engine.checkpoint_externally().await;
    assert!(job.checkpoints().iter().any(|report| report.trigger.name() == "external"));
    for (bad, why) in [
        ("ALTER JOB 1 SET ('parallelism' = '4')", "'parallelism' cannot change while a job runs"),
        ("ALTER JOB 1 SET ('checkpoint.interval' = 'soon')", "\"soon\" is not a duration"),
        ("ALTER JOB 1 SET ('checkpoint.intervall' = '1 s')", "did you mean 'checkpoint.interval'"),
        ("ALTER JOB 8 SET ('checkpoint.interval' = '1 s')", "there is no job 8"),
    ] {
        let error = failure(&session, bad).await;
        assert!(error.contains(why), "{bad}: {error}");
    }
    // What was altered holds for the job's next start too.
    session.execute("ALTER JOB 1 SET ('checkpoint.interval' = '0')").await.unwrap();
    job.crash().await;
    drop((job, session, engine));
    let engine = Engine::open(dir.path().join("data")).unwrap();
    let jobs = engine.resume_jobs().await.unwrap();
    let session = engine.session();
    session.execute("CHECKPOINT JOB 1").await.unwrap();
    assert_eq!(jobs[0].checkpoints().len(), 1, "no automatic ones");
    let stored = millpond::list_snapshots(&dir.path().join("data")).unwrap();
    assert_eq!(texts(&stored).len(), 2, "two are retained");
    engine.close().await.unwrap();
    let (rows, whole) = millpond::verify_snapshots(&dir.path().join("data")).unwrap();
    assert!(whole, "{:?}", texts(&rows));
}

/// The difference of two checkpoints: in one query, and by command over a stopped engine's files.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_checkpoints_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "a.csv", &[0, 1, 2]);
    let engine = Engine::open(dir.path().join("data")).unwrap();
    let session = engine.session();
    session.execute(&tables(dir.path())).await.unwrap();
    let job = start(&session, "INSERT INTO counts SELECT i, COUNT(*) FROM numbers GROUP BY i").await;
    job.end_epoch().await.unwrap();
    session.execute("CHECKPOINT").await.unwrap();
    put(dir.path(), "b.csv", &[2, 5]);
    job.end_epoch().await.unwrap();
    session.execute("CHECKPOINT").await.unwrap();
    let folder = dir.path().join("data/jobs/job-1");
    let uid = aggregate(&session, &folder.display().to_string()).await;
    let difference = format!(
        "SELECT * FROM checkpoint_state('1', '{uid}', 2) EXCEPT SELECT * FROM checkpoint_state('1', '{uid}', 1)"
    );
    let rows = sorted(&session.query(&difference).await.unwrap().batches().await.unwrap());
    assert_eq!(rows.iter().map(|row| &row[..1]).collect::<Vec<_>>(), ["2", "5"]);
    engine.close().await.unwrap();
    let compared = millpond::compare_snapshots(&folder.join("chk-1"), &folder.join("chk-2")).unwrap();
    assert_eq!(texts(&compared)[0][3..], ["1", "0", "1", "2"]);
    let inspected = millpond::inspect_snapshot(&folder.join("chk-1")).unwrap();
    assert!(texts(&inspected).iter().any(|row| row[0] == uid && row[7] == "3"), "{:?}", texts(&inspected));
}

/// An older snapshot into a new output gives the rows since; into the same output it is refused,
/// since what came after it is there already. Nothing is ever lost in silence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_snapshot_goes_on_into_a_new_output_but_not_into_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let insert = "INSERT INTO chosen SELECT i FROM numbers";
    let engine = Engine::open(dir.path().join("data")).unwrap();
    let session = engine.session();
    session.execute(&tables(dir.path())).await.unwrap();
    session.execute("SET 'checkpoint.retained' = '20'").await.unwrap();
    put(dir.path(), "1.csv", &[1]);
    let job = start(&session, insert).await;
    for i in 2..=10 {
        put(dir.path(), &format!("{i}.csv"), &[i]);
        job.end_epoch().await.unwrap();
        session.execute("CHECKPOINT").await.unwrap();
    }
    job.crash().await;
    drop((job, session, engine));
    let snapshot = dir.path().join("data/jobs/job-1/chk-3");
    for (data, out, expected) in [("new", "elsewhere", "45,6,6"), ("same", "chosen", "55,10,10")] {
        let engine = Engine::open(dir.path().join(data)).unwrap();
        let session = engine.session();
        session.execute(&tables(dir.path()).replace("/chosen", &format!("/{out}"))).await.unwrap();
        session.execute(&format!("SET 'restore.from' = '{}'", snapshot.display())).await.unwrap();
        let job = start(&session, insert).await;
        if out == "chosen" {
            let refused = format!("{}", job.wait().await.unwrap_err());
            assert!(refused.contains("would write rows twice"), "{refused}");
        } else {
            job.end_epoch().await.unwrap();
            session.execute("STOP JOB 1").await.unwrap();
        }
        let rows = session.query("SELECT SUM(i), COUNT(*), COUNT(DISTINCT i) FROM chosen").await;
        assert_eq!(sorted(&rows.unwrap().batches().await.unwrap()), [expected]);
    }
}
