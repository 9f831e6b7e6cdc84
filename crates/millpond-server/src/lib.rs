//! Wire protocols over the engine's public face: HTTP for those who operate it.
//!
//! | request | answer |
//! |---|---|
//! | `GET /jobs` | the rows of SHOW JOBS |
//! | `GET /jobs/{id}/checkpoints` | the job's rows of SHOW CHECKPOINTS |
//! | `POST /jobs/{id}/checkpoints` | makes a checkpoint and answers when it is complete: id, duration, sizes |
//! | `GET /metrics` | counters of jobs, rows, checkpoints and memory, as OpenMetrics text for Prometheus |
//!
//! Other answers are JSON; errors are `{"error": …, "hint": …}` with a status: 404 for a job that is not
//! there, 409 for one that has ended, 503 when it did not work for the moment, else 500.

mod metrics;

use std::net::SocketAddr;

use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Router, serve as serve_at};
use millpond::{ColumnText, Engine, Error, ErrorKind, JobId, Outcome, Result, TextFormat};

/// Answers requests at an address until the process ends; gives the address that was bound.
///
/// Errors: *Unavailable* if the address cannot be bound.
pub async fn listen(engine: Engine, address: SocketAddr) -> Result<SocketAddr> {
    let failed = |error: std::io::Error| Error::io(format!("listen at {address}"), &error);
    let listener = tokio::net::TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let router = router(engine);
    tokio::spawn(async move {
        if let Err(error) = serve_at(listener, router).await {
            tracing::warn!(%error, %bound, "listening has ended");
        }
    });
    Ok(bound)
}

fn router(engine: Engine) -> Router {
    Router::new()
        .route("/jobs", get(jobs))
        .route("/jobs/{id}/checkpoints", get(checkpoints).post(checkpoint))
        .route("/metrics", get(metrics_text))
        .fallback(nothing)
        .with_state(engine)
}

async fn jobs(State(engine): State<Engine>) -> Response {
    answered(rows(&engine, "SHOW JOBS", None).await)
}

async fn checkpoints(State(engine): State<Engine>, Path(id): Path<u64>) -> Response {
    if let Err(error) = engine.job(JobId(id)) {
        return refused(StatusCode::NOT_FOUND, &error);
    }
    answered(rows(&engine, "SHOW CHECKPOINTS", Some(("job id", &id.to_string()))).await)
}

async fn checkpoint(State(engine): State<Engine>, Path(id): Path<u64>) -> Response {
    let job = match engine.job(JobId(id)) {
        Ok(job) => job,
        Err(error) => return refused(StatusCode::NOT_FOUND, &error),
    };
    if !job.is_running() {
        let error =
            Error::invalid(format!("job {id} does not run")).with_hint("GET /jobs says how it has ended");
        return refused(StatusCode::CONFLICT, &error);
    }
    match job.checkpoint_externally().await {
        Ok(made) => json(
            StatusCode::OK,
            &serde_json::json!({
                "job": id,
                "checkpoint": made.checkpoint.0,
                "duration_ms": made.duration.as_secs_f64() * 1000.0,
                "bytes": made.bytes,
                "rows": made.rows,
                "total_bytes": made.total_bytes,
            })
            .to_string(),
        ),
        Err(error) => refused(status_of(&error), &error),
    }
}

async fn metrics_text(State(engine): State<Engine>) -> Response {
    match metrics::text(&engine) {
        Ok(text) => ([(header::CONTENT_TYPE, metrics::MEDIA_TYPE)], text).into_response(),
        Err(error) => {
            let error = Error::internal(format!("metrics cannot be written: {error}"));
            refused(StatusCode::INTERNAL_SERVER_ERROR, &error)
        }
    }
}

async fn nothing() -> Response {
    let error = Error::invalid("nothing is here")
        .with_hint("GET /jobs, GET /metrics, GET or POST /jobs/{id}/checkpoints");
    refused(StatusCode::NOT_FOUND, &error)
}

/// The rows of a statement as a JSON array; of those where a column has a value, if asked so.
async fn rows(engine: &Engine, sql: &str, only: Option<(&str, &str)>) -> Result<String> {
    let Outcome::Rows(rows) = engine.session().execute(sql).await? else {
        return Err(Error::internal(format!("{sql} gives no rows")));
    };
    let mut out = String::from("[");
    for batch in &rows.batches {
        let schema = batch.schema();
        let format = TextFormat::file();
        let columns = batch.columns().iter().map(|column| format.formatter(column));
        let columns = columns.collect::<Result<Vec<ColumnText>>>()?;
        for row in 0..batch.num_rows() {
            let mut fields = schema.fields().iter().zip(&columns);
            let is_wanted = only.is_none_or(|(name, value)| {
                fields.any(|(field, column)| {
                    let mut text = String::new();
                    column.write(row, &mut text);
                    field.name() == name && text == value
                })
            });
            if is_wanted {
                out.push_str(if out.len() > 1 { ",\n " } else { "" });
                object(
                    schema.fields().iter().map(|field| field.name().as_str()).zip(&columns),
                    row,
                    &mut out,
                );
            }
        }
    }
    out.push(']');
    Ok(out)
}

fn object<'a>(columns: impl Iterator<Item = (&'a str, &'a ColumnText)>, row: usize, out: &mut String) {
    for (place, (name, column)) in columns.enumerate() {
        out.push_str(if place == 0 { "{" } else { "," });
        out.push_str(&serde_json::Value::from(name).to_string());
        out.push(':');
        column.write_json(row, out);
    }
    out.push('}');
}

fn answered(rows: Result<String>) -> Response {
    match rows {
        Ok(text) => json(StatusCode::OK, &text),
        Err(error) => refused(status_of(&error), &error),
    }
}

fn refused(status: StatusCode, error: &Error) -> Response {
    json(status, &serde_json::json!({ "error": error.message(), "hint": error.hint() }).to_string())
}

fn status_of(error: &Error) -> StatusCode {
    match error.kind() {
        ErrorKind::Unavailable | ErrorKind::Cancelled => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::Invalid => StatusCode::CONFLICT,
        ErrorKind::Data | ErrorKind::Corrupt | ErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn json(status: StatusCode, text: &str) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], format!("{text}\n")).into_response()
}

#[cfg(test)]
mod tests;
