//! Faults that have broken other engines, arranged on purpose: files that come late, disappear or
//! are damaged, checkpoints that are alone.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use millpond::{Engine, Job, Outcome, Random, Session};

use crate::text::sorted;

async fn rows(session: &Session, sql: &str) -> Vec<String> {
    sorted(&session.query(sql).await.unwrap().batches().await.unwrap())
}

async fn job(session: &Session, sql: &str) -> Job {
    match session.execute(sql).await.unwrap() {
        Outcome::Job(job) => job,
        other => panic!("an INSERT is a job: {other:?}"),
    }
}

/// Waits until a job has read so many rows since its last start, or has ended.
async fn has_read(job: &Job, rows: u64) {
    while job.is_running() && job.metrics().rows_read() < rows {
        tokio::task::yield_now().await;
    }
}

/// Writes ids as JSON lines; the file is last modified on this day of 1970.
fn write_ids(path: &Path, ids: std::ops::RangeInclusive<i32>, day: u64) {
    let text: String = ids.map(|id| format!("{{\"id\": {id}}}\n")).collect();
    let part = path.with_extension("part");
    fs::write(&part, text).unwrap();
    let file = fs::File::options().write(true).open(&part).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(day * 86_400)).unwrap();
    drop(file);
    fs::rename(part, path).unwrap();
}

const WATCHED: &str = "SELECT COUNT(*), COUNT(DISTINCT id), SUM(id) FROM out";

fn watched(dir: &Path) -> String {
    format!(
        "CREATE TABLE t (id INT) WITH ('connector' = 'filesystem', 'path' = '{0}/in/*.json', 'format' = 'json',
           'source.monitor-interval' = '5 ms');
         CREATE TABLE out (id INT) WITH ('connector' = 'filesystem', 'path' = '{0}/out', 'format' = 'csv');
         SET 'checkpoint.interval' = '0';
         INSERT INTO out SELECT id FROM t;",
        dir.display()
    )
}

/// A file is known by its path: one that is older than what was read is as new as any.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_comes_late_with_an_old_time_is_read_once() {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("in");
    fs::create_dir(&input).unwrap();
    write_ids(&input.join("b.json"), 1..=3, 20);
    let engine = Engine::open(dir.path().join("data")).unwrap();
    let session = engine.session();
    let first = job(&session, &watched(dir.path())).await;
    has_read(&first, 3).await;
    write_ids(&input.join("a.json"), 4..=5, 10);
    write_ids(&input.join("c.json"), 6..=6, 20);
    has_read(&first, 6).await;
    first.checkpoint().await.unwrap();
    engine.crash_and_restore().await.unwrap();
    let again = engine.job(first.id()).unwrap();
    write_ids(&input.join("0.json"), 7..=7, 1);
    has_read(&again, 1).await;
    again.stop().await.unwrap();
    assert_eq!(rows(&session, WATCHED).await, ["7,7,28"]);
}

/// One checkpoint is enough to go on from, however many there were before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_only_checkpoint_kept_is_enough() {
    let dir = tempfile::tempdir().unwrap();
    let script = format!(
        "CREATE TABLE g (i BIGINT) WITH ('connector' = 'datagen', 'number-of-rows' = '20000',
           'fields.i.kind' = 'sequence', 'fields.i.start' = '1', 'fields.i.end' = '20000');
         CREATE TABLE out (i BIGINT) WITH ('connector' = 'filesystem', 'path' = '{}/out', 'format' = 'csv');
         SET 'checkpoint.every-rows' = '100'; SET 'epoch.rows' = '100'; SET 'checkpoint.retained' = '1';
         SET 'parallelism' = '2';
         INSERT INTO out SELECT i FROM g;",
        dir.path().display()
    );
    for part in 1..=3 {
        let engine = Engine::open(dir.path().join("data")).unwrap();
        let session = engine.session();
        let running = job(&session, &script).await;
        has_read(&running, 4000).await;
        engine.crash_and_restore().await.unwrap();
        let again = engine.job(running.id()).unwrap();
        if part == 3 {
            again.wait().await.unwrap();
            let sums = rows(&session, "SELECT COUNT(*), COUNT(DISTINCT i), SUM(i) FROM out").await;
            assert_eq!(sums, ["20000,20000,200010000"]);
        } else {
            has_read(&again, 1000).await;
            again.stop().await.unwrap();
        }
        let kept = fs::read_dir(dir.path().join("data/jobs/job-1")).unwrap();
        let names = kept.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let names: Vec<String> = names.filter(|name| name.starts_with("chk-")).collect();
        assert_eq!(names.len(), 1, "{names:?}");
        drop((running, again, session, engine));
    }
}

/// A snapshot in the midst of a window changes nothing, whether or not the job starts again from it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_leaves_what_it_copies() {
    for crashes in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let engine = Engine::open(dir.path().join("data")).unwrap();
        let session = engine.session();
        let script = format!(
            "CREATE TABLE g (i BIGINT, ts AS TIMESTAMP '1970-01-01 00:00:00' + i * INTERVAL '1' SECOND,
               WATERMARK FOR ts AS ts) WITH ('connector' = 'datagen', 'number-of-rows' = '40000',
               'fields.i.kind' = 'sequence', 'fields.i.start' = '0', 'fields.i.end' = '39999');
             CREATE TABLE out (e TIMESTAMP(3), n BIGINT, d BIGINT, s BIGINT, mn BIGINT, mx STRING, av BIGINT)
               WITH ('connector' = 'filesystem', 'path' = '{}/out', 'format' = 'csv');
             SET 'checkpoint.interval' = '0'; SET 'epoch.rows' = '50'; SET 'parallelism' = '1';
             INSERT INTO out SELECT window_end, COUNT(*), COUNT(DISTINCT i % 7), SUM(i), MIN(i),
               MAX(CAST(i % 7 AS STRING)), AVG(i)
             FROM TABLE(TUMBLE(TABLE g, DESCRIPTOR(ts), INTERVAL '10000' SECOND)) GROUP BY window_start, window_end",
            dir.path().display()
        );
        let mut running = job(&session, &script).await;
        let mut checkpoints = 0;
        // A job that has ended makes no checkpoint.
        while running.checkpoint().await.is_ok() {
            checkpoints += 1;
            if crashes && checkpoints <= 3 {
                engine.crash_and_restore().await.unwrap();
                running = engine.job(running.id()).unwrap();
            }
        }
        running.wait().await.unwrap();
        // The first is asked for at the start; how many follow is a matter of speed.
        assert!(checkpoints > 0);
        let window = |(n, end): (i64, &&str)| {
            let (start, sum) = (n * 10_000, n * 100_000_000 + 49_995_000);
            format!("1970-01-01 {end},10000,7,{sum},{start},6,{}", start + 4999)
        };
        let ends = ["02:46:40", "05:33:20", "08:20:00", "11:06:40"];
        let want: Vec<String> = (0..).zip(&ends).map(window).collect();
        assert_eq!(rows(&session, "SELECT * FROM out").await, want);
    }
}

/// A damaged Parquet file gives an error or its rows, and the engine goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_parquet_files_never_end_the_process() {
    let good = concat!(env!("CARGO_MANIFEST_DIR"), "/../../sql-tests/files/parquet/good.parquet");
    let good = fs::read(good).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("mutated.parquet");
    let engine = Engine::ephemeral().unwrap();
    let session = engine.session();
    let create = format!(
        "CREATE TABLE t (id BIGINT) WITH ('connector' = 'filesystem', 'path' = '{}', 'format' = 'parquet')",
        file.display()
    );
    fs::write(&file, &good).unwrap();
    session.execute(&create).await.unwrap();
    let whole = rows(&session, "SELECT COUNT(*) FROM t").await;
    let mut random = Random::seeded(11);
    let mut refused = 0;
    for _ in 0..300 {
        let mut bytes = good.clone();
        for _ in 0..1 + random.below(16) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.next_u64() as u8;
        }
        if random.below(5) == 0 {
            bytes.truncate(random.below(bytes.len() as u64) as usize);
        }
        fs::write(&file, bytes).unwrap();
        let answer = async { session.query("SELECT COUNT(*), SUM(id) FROM t").await?.batches().await };
        match answer.await {
            Ok(_) => {}
            Err(error) => {
                assert_ne!(error.kind(), millpond::ErrorKind::Internal, "{error}");
                refused += 1;
            }
        }
    }
    assert!(refused > 10, "{refused}");
    fs::write(&file, &good).unwrap();
    assert_eq!(rows(&session, "SELECT COUNT(*) FROM t").await, whole);
}
