//! The main job against values computed independently (by `examples/flights/expected.py`).

use millpond::{Engine, Outcome, split_statements};

use crate::text::lines;

const SCRIPT: &str = include_str!("../../../../examples/flights/flights.sql");
/// Lines of `name|row…`.
const EXPECTED: &str = include_str!("../../../../examples/flights/expected.txt");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_main_job_gives_the_independent_values() {
    let dir = tempfile::tempdir().unwrap();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/flights");
    let script = SCRIPT.replace("$FLIGHTS", folder).replace("$OUT", &dir.path().to_string_lossy());
    let engine = Engine::open(dir.path().join("data")).unwrap();
    let session = engine.session();
    session.set_setting("time-zone", "UTC").unwrap();
    let mut answers = Vec::new();
    for source in split_statements(&script) {
        match session.run(&source).await.unwrap_or_else(|error| panic!("{}: {error}", source.text)) {
            Outcome::Rows(rows) => answers.push(lines(&rows.batches)),
            Outcome::Job(job) => {
                job.wait().await.unwrap();
                answers.push(vec![format!("late {}", job.metrics().rows_late())]);
            }
            Outcome::Done(_) | Outcome::Changes(_) => {}
        }
    }
    let hourly = session.query("SELECT * FROM hourly ORDER BY origin, hour_start").await.unwrap();
    let sums = session
        .query("SELECT COUNT(*), SUM(flights), SUM(cancelled), MAX(worst_delay), ROUND(SUM(mean_delay), 3) FROM hourly")
        .await
        .unwrap();
    let hourly = lines(&hourly.batches().await.unwrap());
    let mut got: Vec<String> = Vec::new();
    for (name, rows) in ["late", "worst", "rain", "carriers"].iter().zip(&answers) {
        got.extend(rows.iter().map(|row| format!("{name}|{row}")));
    }
    got.extend(lines(&sums.batches().await.unwrap()).iter().map(|row| format!("sums|{row}")));
    got.extend(hourly.iter().take(20).map(|row| format!("hourly|{row}")));
    let want: Vec<&str> = EXPECTED.lines().collect();
    assert_eq!(got, want);
}
