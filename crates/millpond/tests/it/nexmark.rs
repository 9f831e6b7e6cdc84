//! Nexmark against the reference results of Flink 2.3 (as digests): plainly, in one-row epochs,
//! at parallelism 1, 2 and 4, and over the disordered set.
//!
//! The events come from the built-in generator, which gives the rows of the reference files.

use millpond::{Engine, EngineOptions};

use crate::text::lines;

/// `query rows sum`, made by `benches/nexmark/digest.py` from the reference results.
const DIGESTS: &str = include_str!("../data/nexmark-digests.txt");
const QUERIES: &[(&str, &str)] = &[
    ("q0", include_str!("../../../../benches/nexmark/queries/q0.sql")),
    ("q1", include_str!("../../../../benches/nexmark/queries/q1.sql")),
    ("q2", include_str!("../../../../benches/nexmark/queries/q2.sql")),
    ("q3", include_str!("../../../../benches/nexmark/queries/q3.sql")),
    ("q4", include_str!("../../../../benches/nexmark/queries/q4.sql")),
    ("q5", include_str!("../../../../benches/nexmark/queries/q5.sql")),
    ("q7", include_str!("../../../../benches/nexmark/queries/q7.sql")),
    ("q8", include_str!("../../../../benches/nexmark/queries/q8.sql")),
    ("q9", include_str!("../../../../benches/nexmark/queries/q9.sql")),
    ("q11", include_str!("../../../../benches/nexmark/queries/q11.sql")),
    ("q14", include_str!("../../../../benches/nexmark/queries/q14.sql")),
    ("q15", include_str!("../../../../benches/nexmark/queries/q15.sql")),
    ("q16", include_str!("../../../../benches/nexmark/queries/q16.sql")),
    ("q17", include_str!("../../../../benches/nexmark/queries/q17.sql")),
    ("q18", include_str!("../../../../benches/nexmark/queries/q18.sql")),
    ("q19", include_str!("../../../../benches/nexmark/queries/q19.sql")),
    ("q20", include_str!("../../../../benches/nexmark/queries/q20.sql")),
    ("q21", include_str!("../../../../benches/nexmark/queries/q21.sql")),
    ("q22", include_str!("../../../../benches/nexmark/queries/q22.sql")),
];

/// The three event tables, out of order by up to `disorder` events.
pub(crate) fn tables(disorder: u32) -> String {
    let with = |event: &str| {
        format!(
            "WATERMARK FOR `dateTime` AS `dateTime` - INTERVAL '4' SECOND) WITH ('connector' = 'nexmark', \
             'event' = '{event}', 'events' = '100000', 'rate' = '1000', 'base-time' = '1704067140000', 'ooo' = '{disorder}');"
        )
    };
    format!(
        "CREATE TABLE person (id BIGINT, name STRING, emailAddress STRING, creditCard STRING, city STRING, state STRING,
           `dateTime` TIMESTAMP(3), extra STRING, {}
         CREATE TABLE auction (id BIGINT, itemName STRING, description STRING, initialBid BIGINT, reserve BIGINT,
           `dateTime` TIMESTAMP(3), expires TIMESTAMP(3), seller BIGINT, category BIGINT, extra STRING, {}
         CREATE TABLE bid (auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING,
           `dateTime` TIMESTAMP(3), extra STRING, {}",
        with("person"),
        with("auction"),
        with("bid")
    )
}

/// `name rows sum` of an answer, as `digest.py` makes it.
pub(crate) fn digest(name: &str, lines: &[String]) -> String {
    let sum = lines.iter().fold(0u64, |sum, line| sum.wrapping_add(fnv(line)));
    format!("{name} {} {sum:016x}", lines.len())
}

/// FNV-1a over a line.
fn fnv(line: &str) -> u64 {
    line.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

async fn check(settings: &[(&str, &str)], disorder: u32, queries: &[&str]) {
    let settings = settings.iter().map(|(key, value)| ((*key).to_string(), (*value).to_string())).collect();
    let engine = Engine::with_options(EngineOptions { settings, ..EngineOptions::default() }).unwrap();
    let session = engine.session();
    session.execute(&tables(disorder)).await.unwrap();
    for (name, sql) in QUERIES.iter().filter(|(name, _)| queries.is_empty() || queries.contains(name)) {
        let answer = session.query(sql).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        let lines = lines(&answer.batches().await.unwrap());
        let digest = digest(name, &lines);
        let want = DIGESTS.lines().find(|line| line.split(' ').next() == Some(name)).unwrap();
        assert_eq!(digest, want, "first rows: {:?}", &lines[..lines.len().min(3)]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reference_results_at_every_parallelism() {
    for parallelism in ["1", "2", "4"] {
        check(&[("parallelism", parallelism)], 1, &[]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reference_results_in_small_batches_and_epochs() {
    check(&[("batch.rows", "7"), ("epoch.rows", "1000"), ("parallelism", "2")], 1, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reference_results_in_one_row_epochs() {
    check(&[("epoch.rows", "1"), ("parallelism", "1")], 1, &[]).await;
}

/// Disorder below the watermark's delay changes nothing, except which of equal rows came first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reference_results_over_the_disordered_set() {
    let by_arrival = ["q18", "q19"];
    let queries: Vec<&str> =
        QUERIES.iter().map(|(name, _)| *name).filter(|name| !by_arrival.contains(name)).collect();
    check(&[("parallelism", "2")], 1000, &queries).await;
}
