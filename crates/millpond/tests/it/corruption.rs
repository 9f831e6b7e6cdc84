//! Random damage to the files of checkpoints, under the whole engine: a job that is started again on
//! them has the right state and output, or is refused; it never answers wrongly and never panics.
//!
//! A small number of rounds by default; `CORRUPTIONS=3400 cargo test --workspace corruption` for 10,200 in all.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use millpond::{Engine, ErrorKind, Outcome, Random, Session};

use crate::text::sorted;

fn rounds() -> u64 {
    option_env!("CORRUPTIONS").and_then(|rounds| rounds.parse().ok()).unwrap_or(20)
}

/// A job that counts numbers by key; with `keeps`, it also writes them into files.
struct Case {
    backend: &'static str,
    keeps: bool,
}

const INPUT: [&[i64]; 4] = [&[1, 2, 3, 2], &[4, 1], &[9, 9, 2], &[5, 1]];

impl Case {
    fn script(&self, dir: &Path) -> String {
        let into_files = if self.keeps { "INSERT INTO chosen SELECT i FROM numbers;" } else { "" };
        format!(
            "CREATE TABLE numbers (i BIGINT) WITH ('connector' = 'filesystem', 'path' = '{0}/in',
               'format' = 'csv', 'csv.header' = 'false', 'source.monitor-interval' = '1 h');
             CREATE TABLE counts (k BIGINT, n BIGINT) WITH ('connector' = 'blackhole');
             CREATE TABLE chosen (i BIGINT) WITH ('connector' = 'filesystem', 'path' = '{0}/chosen', 'format' = 'csv');
             SET 'checkpoint.interval' = '0'; SET 'parallelism' = '2'; SET 'state.backend' = '{1}';
             SET 'job.name' = 'counting';
             EXECUTE STATEMENT SET BEGIN
               INSERT INTO counts SELECT i, COUNT(*) FROM numbers GROUP BY i;
               {into_files}
             END;",
            dir.display(),
            self.backend
        )
    }

    async fn start(&self, dir: &Path) -> (Engine, Session, millpond::Job) {
        let engine = Engine::open(dir.join("data")).unwrap();
        let session = engine.session();
        let Outcome::Job(job) = session.execute(&self.script(dir)).await.unwrap() else {
            panic!("a statement set is a job")
        };
        (engine, session, job)
    }

    /// Three checkpoints over the first three files; then a crash, and one file more.
    async fn prepare(&self, dir: &Path) {
        fs::create_dir_all(dir.join("in")).unwrap();
        let put = |at: usize| {
            let text: String = INPUT[at].iter().map(|number| format!("{number}\n")).collect();
            fs::write(dir.join("in").join(format!("{at}.csv")), text).unwrap();
        };
        put(0);
        let (_engine, session, job) = self.start(dir).await;
        for at in 0..3 {
            put(at);
            job.end_epoch().await.unwrap();
            session.execute("CHECKPOINT").await.unwrap();
        }
        job.crash().await;
        put(3);
    }

    /// Starts the job on what is there; whether it ran (and then rightly), or was refused.
    async fn survives(&self, dir: &Path, done: &str) -> bool {
        let (engine, session, job) = self.start(dir).await;
        let ran = match job.end_epoch().await {
            Ok(()) => session.execute("CHECKPOINT").await.map(drop),
            Err(error) => Err(error),
        };
        if let Err(error) = ran {
            let known = matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Invalid);
            assert!(known, "{done}: {error}");
            return false;
        }
        let uid = self.aggregate(&session).await;
        // A job that came back by RocksDB's files has not read its parts; who reads them is told.
        let query = format!("SELECT * FROM checkpoint_state('1', '{uid}')");
        let state = match answer(&session, &query).await {
            Ok(state) => state,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{done}: {error}");
                job.cancel().await;
                return false;
            }
        };
        let counted: Vec<String> = expected().iter().map(|(key, count)| format!("{key},{count}")).collect();
        let found: Vec<String> =
            state.iter().map(|row| row.split(',').take(2).collect::<Vec<_>>().join(",")).collect();
        assert_eq!(found, counted, "{done}");
        if self.keeps {
            let mut all: Vec<String> = INPUT.concat().iter().map(i64::to_string).collect();
            all.sort();
            assert_eq!(rows(&session, "SELECT i FROM chosen").await, all, "{done}");
        }
        drop(job);
        engine.close().await.unwrap();
        true
    }

    /// The uid of the aggregate in the job's plan.
    async fn aggregate(&self, session: &Session) -> String {
        let Outcome::Rows(explained) = session
            .execute("EXPLAIN STATE INSERT INTO counts SELECT i, COUNT(*) FROM numbers GROUP BY i")
            .await
            .unwrap()
        else {
            panic!("EXPLAIN gives rows")
        };
        let lines = sorted(&explained.batches);
        let line = lines.iter().find(|line| line.contains("uid=group-aggregate")).expect("an aggregate");
        let uid = line.split("uid=").nth(1).and_then(|rest| rest.split_whitespace().next());
        uid.expect("a uid").to_string()
    }
}

async fn rows(session: &Session, sql: &str) -> Vec<String> {
    answer(session, sql).await.unwrap()
}

async fn answer(session: &Session, sql: &str) -> millpond::Result<Vec<String>> {
    Ok(sorted(&session.query(sql).await?.batches().await?))
}

fn expected() -> BTreeMap<i64, i64> {
    let mut counts = BTreeMap::new();
    for number in INPUT.concat() {
        *counts.entry(number).or_insert(0) += 1;
    }
    counts
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    entries.into_iter().flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

fn copy(from: &Path, to: &Path) {
    for file in files_below(from) {
        let target = to.join(file.strip_prefix(from).unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(&file, target).unwrap();
    }
}

/// Damages one file of the job's state (or two, by swapping them); says what was done.
fn damage(job: &Path, random: &mut Random) -> String {
    let files = files_below(job);
    let mut pick = || files[random.below(files.len() as u64) as usize].clone();
    let (one, other) = (pick(), pick());
    let mut content = fs::read(&one).unwrap();
    let at = random.below(content.len().max(1) as u64) as usize;
    let what = match random.below(5) {
        0 if !content.is_empty() => {
            content[at] ^= 1 << random.below(8);
            fs::write(&one, &content).unwrap();
            "flip"
        }
        1 => {
            fs::write(&one, &content[..at]).unwrap();
            "cut"
        }
        2 => {
            content[at..].fill(0);
            fs::write(&one, &content).unwrap();
            "zero"
        }
        3 => {
            fs::remove_file(&one).unwrap();
            "delete"
        }
        _ => {
            fs::copy(&other, &one).unwrap();
            fs::write(&other, &content).unwrap();
            "swap"
        }
    };
    format!("{what} {one:?} at {at}, other {other:?}")
}

async fn torture(case: &Case, seed: u64) -> (u64, u64) {
    let original = tempfile::tempdir().unwrap();
    let place = original.path().join("here");
    case.prepare(&place).await;
    let saved = original.path().join("saved");
    copy(&place, &saved);
    let (mut survived, mut refused) = (0, 0);
    for round in 0..rounds() {
        // At the same place: paths stand in the catalog and in the sinks' committables.
        fs::remove_dir_all(&place).unwrap();
        copy(&saved, &place);
        let mut random = Random::seeded(seed + round);
        let done = damage(&place.join("data/jobs"), &mut random);
        match case.survives(&place, &format!("round {round}: {done}")).await {
            true => survived += 1,
            false => refused += 1,
        }
    }
    (survived, refused)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_checkpoints_never_give_wrong_state() {
    for backend in ["filesystem", "rocksdb"] {
        let (survived, refused) = torture(&Case { backend, keeps: false }, 1).await;
        assert!(survived > refused, "{backend}: {survived} survived, {refused} refused");
    }
}

/// Where output is visible already, what cannot be continued exactly is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_checkpoints_never_double_output() {
    let (survived, refused) = torture(&Case { backend: "filesystem", keeps: true }, 2).await;
    assert!(survived > 0 && refused > 0, "{survived} survived, {refused} refused");
}
