//! What is asked over HTTP is answered as the table of the module says.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use millpond::{Engine, Outcome};

use super::listen;

/// Status and body of an answer.
async fn ask(address: SocketAddr, request: &'static str) -> (u16, serde_json::Value) {
    let (status, body) = text(address, request).await;
    (status, serde_json::from_str(body.trim()).unwrap())
}

async fn text(address: SocketAddr, request: &'static str) -> (u16, String) {
    let exchange = move || {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "{request} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let answer = tokio::task::spawn_blocking(exchange).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_are_listed_and_make_checkpoints_on_request() {
    let engine = Engine::ephemeral().unwrap();
    let session = engine.session();
    let job = session
        .execute(
            "CREATE TABLE g (i BIGINT) WITH ('connector' = 'datagen', 'rows-per-second' = '100');
             CREATE TABLE out (i BIGINT) WITH ('connector' = 'blackhole');
             SET 'checkpoint.interval' = '0';
             INSERT INTO out SELECT i FROM g",
        )
        .await
        .unwrap();
    assert!(matches!(job, Outcome::Job(_)));
    let address = listen(engine.clone(), "127.0.0.1:0".parse().unwrap()).await.unwrap();

    let (status, jobs) = loop {
        let (status, jobs) = ask(address, "GET /jobs").await;
        if jobs[0]["state"] != "CREATED" {
            break (status, jobs);
        }
    };
    assert_eq!((status, &jobs[0]["job id"], &jobs[0]["state"]), (200, &"1".into(), &"RUNNING".into()));
    let (status, made) = ask(address, "POST /jobs/1/checkpoints").await;
    assert_eq!((status, &made["job"], &made["checkpoint"]), (200, &1.into(), &1.into()));
    assert!(made["duration_ms"].as_f64().is_some_and(|duration| duration >= 0.0));
    let (status, all) = ask(address, "GET /jobs/1/checkpoints").await;
    assert_eq!(
        (status, &all[0]["checkpoint id"], &all[0]["trigger"]),
        (200, &"1".into(), &"external".into())
    );

    let (status, metrics) = text(address, "GET /metrics").await;
    assert_eq!(status, 200);
    let value = |name: &str| {
        let line = metrics.lines().find(|line| line.starts_with(&format!("millpond_{name} ")));
        line.and_then(|line| line.rsplit(' ').next()).map(|value| value.parse::<f64>().unwrap())
    };
    let job = r#"job="1",name="insert-into-out""#;
    assert_eq!(value(&format!("job_running{{{job}}}")), Some(1.0), "{metrics}");
    assert_eq!(value(&format!("checkpoints_completed_total{{{job}}}")), Some(1.0));
    assert!(value(&format!("checkpoint_duration_seconds{{{job},part=\"whole\"}}")).is_some_and(|s| s >= 0.0));
    assert!(value(&format!("checkpoint_age_seconds{{{job}}}")).is_some_and(|age| age < 600.0));
    let read = |rows: &str| {
        value(&format!("source_rows_total{{{job},table=\"g\",task=\"0\",rows=\"{rows}\"}}")).unwrap()
    };
    assert!(read("read") >= read("sent") && read("rejected") == 0.0);
    assert!(value("memory_limit_bytes").is_some_and(|limit| limit > 0.0), "{metrics}");
    assert!(metrics.ends_with("# EOF\n"));

    let (status, unknown) = ask(address, "POST /jobs/7/checkpoints").await;
    assert_eq!((status, &unknown["error"]), (404, &"there is no job 7".into()));
    assert_eq!(ask(address, "GET /nowhere").await.0, 404);
    session.execute("STOP JOB 1").await.unwrap();
    let (status, ended) = ask(address, "POST /jobs/1/checkpoints").await;
    assert_eq!((status, &ended["error"]), (409, &"job 1 does not run".into()));
}
