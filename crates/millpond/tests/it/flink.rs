//! Features of Flink SQL against results of Flink 2.3 (as digests) over the Nexmark events.

use millpond::{Engine, EngineOptions};

use crate::nexmark::{digest, tables};
use crate::text::lines;

/// `-- name: what` before each.
const FEATURES: &str = include_str!("../data/flink-features.sql");
/// `name rows sum`, made by `benches/nexmark/digest.py` from the reference results.
const DIGESTS: &str = include_str!("../data/flink-digests.txt");
/// Those that the engine has.
const SUPPORTED: &[&str] =
    &["e01", "e03", "e05", "e07", "e09", "e11", "e13", "e15", "e19", "e21", "e23", "e25", "e31"];

/// The disordered bids under a watermark that leaves some behind.
fn late_bids() -> String {
    let tables = tables(1000);
    let bid = tables.split(';').find(|table| table.contains("CREATE TABLE bid")).unwrap();
    format!(
        "{};",
        bid.replace("TABLE bid", "TABLE late").replace("INTERVAL '4' SECOND", "INTERVAL '0.2' SECOND")
    )
}

async fn check(settings: &[(&str, &str)], features: &[&str]) {
    let settings = settings.iter().map(|(key, value)| ((*key).to_string(), (*value).to_string())).collect();
    let engine = Engine::with_options(EngineOptions { settings, ..EngineOptions::default() }).unwrap();
    let session = engine.session();
    session.execute(&tables(1)).await.unwrap();
    session.execute(&late_bids()).await.unwrap();
    for name in features {
        let feature = FEATURES.split("\n-- ").find(|feature| feature.starts_with(name)).unwrap();
        let sql = feature.split_once('\n').unwrap().1;
        let answer = session.query(sql).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        let lines = lines(&answer.batches().await.unwrap());
        let want = DIGESTS.lines().find(|line| line.starts_with(name)).unwrap();
        assert_eq!(digest(name, &lines), want, "first rows: {:?}", &lines[..lines.len().min(3)]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn features_agree_with_flink() {
    check(&[("parallelism", "2"), ("time-zone", "UTC")], SUPPORTED).await;
}

/// Which rows are late is a property of the input, not of batches, epochs and tasks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_rows_are_the_same_in_every_mode() {
    for (batch, epoch, parallelism) in [("1", "1", "1"), ("7", "100", "4"), ("8192", "5000", "2")] {
        let settings = [("batch.rows", batch), ("epoch.rows", epoch), ("parallelism", parallelism)];
        check(&settings, &["e31"]).await;
    }
}
