//! Rows that are sent by POST: what is taken, what is refused, and that each counts once.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use millpond::{Engine, Job, Outcome, Session};

use crate::text::sorted;

fn post(port: u16, path: &str, key: &str, body: &str) -> (u16, serde_json::Value) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let key = if key.is_empty() { String::new() } else { format!("Idempotency-Key: {key}\r\n") };
    let length = body.len();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{key}Content-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, text) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_str(text.trim()).unwrap())
}

fn script(dir: &std::path::Path, port: u16) -> String {
    format!(
        "CREATE TABLE orders (id INT, v DOUBLE) WITH ('connector' = 'http-listen', 'address' = '127.0.0.1:{port}', 'format' = 'json');
         CREATE TABLE kept (id INT, v DOUBLE) WITH ('connector' = 'filesystem', 'path' = '{}/kept', 'format' = 'csv');
         SET 'checkpoint.interval' = '0';
         INSERT INTO kept SELECT id, v FROM orders",
        dir.display()
    )
}

async fn start(dir: &std::path::Path, port: u16) -> (Engine, Session, Job) {
    let engine = Engine::open(dir.join("data")).unwrap();
    let session = engine.session();
    let Outcome::Job(job) = session.execute(&script(dir, port)).await.unwrap() else {
        panic!("an INSERT is a job")
    };
    // It listens once its source is open.
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    (engine, session, job)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_taken_whole_and_count_once_over_crashes() {
    let dir = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (engine, session, job) = start(dir.path(), port).await;
    let (status, taken) = post(port, "/orders", "", "{\"id\":1,\"v\":0.5}\n{\"id\":2}\n");
    assert_eq!((status, &taken["accepted"]), (200, &2.into()));
    assert_eq!(post(port, "/orders", "a", "[{\"id\":3}, {\"id\":4}]").0, 200);
    let (status, again) = post(port, "/orders", "a", "[{\"id\":3}, {\"id\":4}]");
    assert_eq!((status, &again["known"]), (200, &true.into()));
    let (status, refused) = post(port, "/orders", "", "{\"id\":5}\n{\"id\":\"x\"}\n");
    assert_eq!(status, 400);
    assert!(refused["error"].as_str().unwrap().contains("line 2, column"), "{refused}");
    assert_eq!(post(port, "/nowhere", "", "{}").0, 404);
    session.execute("CHECKPOINT").await.unwrap();
    assert_eq!(post(port, "/orders", "b", "{\"id\":6}").0, 200);
    job.crash().await;
    drop((job, session, engine));

    let (engine, session, job) = start(dir.path(), port).await;
    assert_eq!(post(port, "/orders", "b", "{\"id\":6}").1["known"], true);
    assert_eq!(post(port, "/orders", "", "{\"id\":7}").0, 200);
    // What is durable and not read yet when a job stops is read when it goes on.
    job.end_epoch().await.unwrap();
    session.execute("STOP JOB 1").await.unwrap();
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "a stopped job does not listen");
    let rows = session.query("SELECT id FROM kept").await.unwrap().batches().await.unwrap();
    assert_eq!(sorted(&rows), ["1", "2", "3", "4", "6", "7"]);
    drop((job, session, engine));
}
