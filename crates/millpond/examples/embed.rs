//! Millpond in a host program: create, ask, print.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

#[tokio::main]
async fn main() -> millpond::Result<()> {
    let engine = millpond::Engine::ephemeral()?;
    let session = engine.session();
    session
        .execute(
            "CREATE TABLE orders (customer STRING, amount INT)
             WITH ('connector' = 'values', 'data' = 'ann,3\nbob,4\nann,5')",
        )
        .await?;
    let answer = session.query("SELECT customer, SUM(amount) AS total FROM orders GROUP BY customer").await?;
    for batch in answer.batches().await? {
        println!("{batch:?}");
    }
    Ok(())
}
