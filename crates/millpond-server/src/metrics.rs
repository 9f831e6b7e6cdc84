//! `GET /metrics`: what the engine counts, as OpenMetrics text for Prometheus.
//!
//! Nothing is kept for it: each scrape reads the counters of the jobs that were started in this
//! process. Counters begin anew when a job is started anew; a restart by itself is counted.

use std::fmt::Error as NotWritten;
use std::time::Duration;

use millpond::{CheckpointReport, Engine, Job, JobMetrics, Timestamp};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

/// Media type of the text.
pub(crate) const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The metrics of an engine, now.
pub(crate) fn text(engine: &Engine) -> Result<String, NotWritten> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Metrics { engine: engine.clone() }));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Metrics {
    engine: Engine,
}

type Labels = Vec<(&'static str, String)>;

/// A job with its counters.
struct Counted {
    job: Job,
    metrics: JobMetrics,
}

impl Counted {
    /// The job's own labels, and more.
    fn labels(&self, more: impl IntoIterator<Item = (&'static str, String)>) -> Labels {
        let own = [("job", self.job.id().to_string()), ("name", self.job.name().to_owned())];
        own.into_iter().chain(more).collect()
    }

    /// The last completed checkpoint, if there is one.
    fn last(&self) -> Option<&CheckpointReport> {
        self.metrics.last_checkpoint.as_ref()
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), NotWritten> {
        let jobs = self.engine.jobs().into_iter();
        let jobs: Vec<Counted> = jobs.map(|job| Counted { metrics: job.metrics(), job }).collect();
        let (used, limit) = self.engine.state_memory();
        let own = |value: usize| vec![(Labels::new(), value as f64)];
        gauges(&mut encoder, "state_bytes", "Memory that state takes, estimated", own(used))?;
        gauges(&mut encoder, "memory_limit_bytes", "The setting memory.limit", own(limit))?;
        of_jobs(&mut encoder, &jobs)?;
        of_rows(&mut encoder, &jobs)?;
        of_checkpoints(&mut encoder, &jobs, self.engine.now())
    }
}

fn of_jobs(encoder: &mut DescriptorEncoder<'_>, jobs: &[Counted]) -> Result<(), NotWritten> {
    let of = |value: &dyn Fn(&Counted) -> Option<f64>| -> Vec<(Labels, f64)> {
        jobs.iter().filter_map(|job| Some((job.labels([]), value(job)?))).collect()
    };
    let running = of(&|job| Some(f64::from(u8::from(job.job.is_running()))));
    gauges(encoder, "job_running", "1 while the job is at work", running)?;
    let epoch = of(&|job| Some(job.metrics.epoch.0 as f64));
    gauges(encoder, "job_epoch", "The last epoch that has passed every sink", epoch)?;
    let watermark = of(&|job| job.metrics.watermark().map(|time| time.0 as f64 / 1e6));
    gauges(
        encoder,
        "job_watermark_timestamp_seconds",
        "The lowest watermark of the job's sources; absent before the first",
        watermark,
    )?;
    let restarts = jobs.iter().map(|job| (job.labels([]), job.metrics.restarts)).collect();
    counters(encoder, "job_restarts", "Restarts of the job by itself", restarts)
}

fn of_rows(encoder: &mut DescriptorEncoder<'_>, jobs: &[Counted]) -> Result<(), NotWritten> {
    let mut sources = Vec::new();
    let mut bytes = Vec::new();
    let mut operators = Vec::new();
    for job in jobs {
        for source in &job.metrics.sources {
            let labels = |more: Vec<(&'static str, String)>| {
                let own = [("table", source.table.clone()), ("task", source.task.to_string())];
                job.labels(own.into_iter().chain(more))
            };
            let counted = &source.metrics;
            for (rows, counter) in [
                ("read", &counted.read),
                ("sent", &counted.sent),
                ("rejected", &counted.rejected),
                ("nulled", &counted.nulled),
            ] {
                sources.push((labels(vec![("rows", rows.to_owned())]), counter.value()));
            }
            bytes.push((labels(Vec::new()), counted.bytes.value()));
        }
        for operator in &job.metrics.operators {
            let counted = &operator.metrics;
            for (rows, counter) in [
                ("in", &counted.rows_in),
                ("accepted", &counted.accepted),
                ("filtered", &counted.filtered),
                ("late", &counted.late),
                ("rejected", &counted.rejected),
                ("out", &counted.rows_out),
            ] {
                let labels = job.labels([
                    ("operator", operator.uid.to_string()),
                    ("kind", operator.name.to_owned()),
                    ("task", operator.task.to_string()),
                    ("rows", rows.to_owned()),
                ]);
                operators.push((labels, counter.value()));
            }
        }
    }
    let help = "Rows of a source: read = sent + rejected; nulled fields became NULL";
    counters(encoder, "source_rows", help, sources)?;
    counters(encoder, "source_bytes", "Bytes that a source has read", bytes)?;
    let help = "Rows of an operator: in = accepted + filtered + late + rejected";
    counters(encoder, "operator_rows", help, operators)
}

fn of_checkpoints(
    encoder: &mut DescriptorEncoder<'_>,
    jobs: &[Counted],
    now: Timestamp,
) -> Result<(), NotWritten> {
    let of = |value: &dyn Fn(&Counted) -> u64| -> Vec<(Labels, u64)> {
        jobs.iter().map(|job| (job.labels([]), value(job))).collect()
    };
    let completed = of(&|job| job.metrics.checkpoints.completed);
    counters(encoder, "checkpoints_completed", "Checkpoints that were completed", completed)?;
    let refused = of(&|job| job.metrics.checkpoints.refused);
    counters(encoder, "checkpoints_refused", "Automatic checkpoints that were not made", refused)?;
    let failed = jobs.iter().flat_map(|job| {
        let by_reason = job.metrics.checkpoints.failed.iter();
        by_reason.map(|(reason, count)| (job.labels([("reason", reason.clone())]), *count))
    });
    let failed = failed.collect();
    counters(encoder, "checkpoints_failed", "Checkpoints that failed, by reason", failed)?;

    let last = |value: &dyn Fn(&CheckpointReport) -> Option<f64>| -> Vec<(Labels, f64)> {
        jobs.iter().filter_map(|job| Some((job.labels([]), value(job.last()?)?))).collect()
    };
    let age = last(&|report| Some((now.0 - report.ended_at.0).max(0) as f64 / 1e6));
    gauges(encoder, "checkpoint_age_seconds", "Since the last checkpoint was completed", age)?;
    let durations = jobs.iter().flat_map(|job| {
        let parts = |report: &CheckpointReport| {
            [
                ("whole", report.duration),
                ("align", report.align),
                ("freeze", report.freeze),
                ("drain", report.drain),
                ("asynchronous", report.asynchronous),
            ]
        };
        let labelled = |(part, duration): (&str, Duration)| {
            (job.labels([("part", part.to_owned())]), duration.as_secs_f64())
        };
        job.last().map(parts).into_iter().flatten().map(labelled).collect::<Vec<_>>()
    });
    let durations = durations.collect();
    let help = "Durations of the last completed checkpoint; of parts, the longest of a task";
    gauges(encoder, "checkpoint_duration_seconds", help, durations)?;
    let bytes = last(&|report| Some(report.bytes as f64));
    gauges(encoder, "checkpoint_written_bytes", "Bytes written for the last completed checkpoint", bytes)?;
    let rows = last(&|report| Some(report.rows as f64));
    gauges(encoder, "checkpoint_written_rows", "Rows written for the last completed checkpoint", rows)?;
    let all = last(&|report| Some(report.total_bytes as f64));
    gauges(encoder, "checkpoint_bytes", "Bytes of all files of the last completed checkpoint", all)?;
    let ratio = last(&CheckpointReport::incremental_ratio);
    let help = "Written bytes of the last completed checkpoint over the bytes of all its files";
    gauges(encoder, "checkpoint_incremental_ratio", help, ratio)
}

fn counters(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: Vec<(Labels, u64)>,
) -> Result<(), NotWritten> {
    let name = format!("millpond_{name}");
    let mut family = encoder.encode_descriptor(&name, help, None, MetricType::Counter)?;
    values.iter().try_for_each(|(labels, value)| {
        family.encode_family(labels)?.encode_counter::<Labels, _, u64>(value, None)
    })
}

fn gauges(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: Vec<(Labels, f64)>,
) -> Result<(), NotWritten> {
    let name = format!("millpond_{name}");
    let mut family = encoder.encode_descriptor(&name, help, None, MetricType::Gauge)?;
    values.iter().try_for_each(|(labels, value)| family.encode_family(labels)?.encode_gauge(value))
}
