//! The progress line: rows, rate, watermark and checkpoint of a running job; on a terminal only.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use millpond::Job;

/// How often the line is drawn anew.
const REFRESH: Duration = Duration::from_millis(200);

/// Waits for a job and shows how far it is.
pub(crate) async fn follow(job: &Job, shown: bool) -> millpond::Result<()> {
    if !shown {
        return job.wait().await;
    }
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {pos} rows  {per_sec}  {msg}") {
        bar.set_style(style);
    }
    let mut ticks = tokio::time::interval(REFRESH);
    let outcome = loop {
        tokio::select! {
            outcome = job.wait() => break outcome,
            _ = ticks.tick() => draw(&bar, job),
        }
    };
    bar.finish_and_clear();
    outcome
}

fn draw(bar: &ProgressBar, job: &Job) {
    let metrics = job.metrics();
    bar.set_position(metrics.rows_read());
    let watermark = metrics.watermark().map(|watermark| format!("watermark {watermark}"));
    let checkpoint = metrics.last_checkpoint.map(|report| format!("checkpoint {}", report.checkpoint));
    let parts: Vec<String> =
        [Some(job.name().to_string()), watermark, checkpoint].into_iter().flatten().collect();
    bar.set_message(parts.join("  "));
}
