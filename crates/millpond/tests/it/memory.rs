//! `memory.limit`: what is counted, what leaves memory, and what happens where it cannot.

use millpond::{Engine, Session};

use crate::text::sorted;

/// 48 MB of texts, of 8 kB each.
const TEXTS: &str = "SELECT COUNT(*), SUM(CHAR_LENGTH(longest)) FROM (
    SELECT i, MAX(REPEAT(CAST(i % 10 AS STRING), 8000)) AS longest FROM numbers GROUP BY i) AS t";

/// The same, in an operator whose rows stay.
const RANKED: &str = "SELECT COUNT(*), SUM(CHAR_LENGTH(longest)) FROM (
    SELECT i, longest, ROW_NUMBER() OVER (PARTITION BY i ORDER BY i) AS place
    FROM (SELECT i, REPEAT(CAST(i % 10 AS STRING), 8000) AS longest FROM numbers) AS n) AS t
    WHERE place <= 2";

async fn answer(session: &Session, query: &str) -> millpond::Result<Vec<String>> {
    Ok(sorted(&session.query(query).await?.batches().await?))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_texts_count_and_leave_memory_and_the_limit_can_be_lifted() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(dir.path().join("data")).unwrap();
    let session = engine.session();
    let setup = "CREATE TABLE numbers (i BIGINT) WITH ('connector' = 'datagen', 'number-of-rows' = '6000',
          'fields.i.kind' = 'sequence', 'fields.i.start' = '1', 'fields.i.end' = '6000');
        SET 'parallelism' = '1'; SET 'batch.rows' = '250'; SET 'memory.limit' = '16 mb'";
    session.execute(setup).await.unwrap();
    let spilled = dir.path().join("data/spill");
    assert!(!spilled.exists());
    assert_eq!(answer(&session, TEXTS).await.unwrap(), ["6000,48000000"]);
    assert!(spilled.exists(), "48 MB do not stay in 16 MB");

    let error = answer(&session, RANKED).await.unwrap_err();
    assert!(error.message().contains("TopN"), "{error}");
    assert!(error.message().contains("'memory.limit' of 16 MB is exceeded"), "{error}");
    session.execute("RESET 'memory.limit'").await.unwrap();
    assert_eq!(answer(&session, RANKED).await.unwrap(), ["6000,48000000"]);
}
