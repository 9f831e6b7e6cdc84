//! Millpond: declarative streaming SQL in your process.
//!
//! ```no_run
//! # async fn run() -> millpond::Result<()> {
//! let engine = millpond::Engine::ephemeral()?;
//! let session = engine.session();
//! session.execute("CREATE TABLE t (a INT) WITH ('connector' = 'values', 'data' = '1\n2')").await?;
//! let answer = session.query("SELECT SUM(a) AS s FROM t").await?;
//! for batch in answer.batches().await? {
//!     println!("{} rows", batch.num_rows());
//! }
//! # Ok(()) }
//! ```

