//! The exactly-once sink of `filesystem`: part files that appear when their checkpoint is durable.
//!
//! A part goes through three names in its folder, each step one atomic rename:
//!
//! ```text
//! .part-<job>-<task>-<generation>-<n>.csv.inprogress             rows of the open transaction
//! .part-<job>-<task>-<generation>-<checkpoint>-<n>.csv.pending   durable (pre-commit), owed to it
//!  part-<job>-<task>-<generation>-<checkpoint>-<n>.csv           committed: readers see it
//! ```
//!
//! Parts of change events have generation and checkpoint before the task: they are read in the
//! order of their names.
//!
//! A crash before pre-commit leaves files that the next generation of the job removes; their rows
//! are read again. A crash after it leaves pending files: those that a durable checkpoint names
//! are committed (again, if need be), the others removed. So no row is lost or doubled. Readers
//! ignore hidden files.
//!
//! With `PARTITIONED BY` a row goes to the folder `k=v/…`, and the file lacks those columns.

mod commit;
mod part;
mod partition;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use millpond_core::{ChangelogBatch, ChangelogMode, CheckpointId, Error, Result, RowKind};

use crate::connector::{Committable, PreCommit, SinkConnector, SinkContext, SinkWriter};
use crate::factory::TableSpec;
use crate::options::Options;
use part::{Encoding, FinishedPart, OpenPart, PartNames};
use partition::Partitioning;

/// Parts that a writer holds open at once: each has a file handle and a buffer. When a further
/// partition comes, the largest part is closed; its partition goes on in a new one.
const OPEN_PARTS_MAX: usize = 64;

const FILE_BYTES_DEFAULT: u64 = 128 << 20;

/// Parses the writing side of a table whose files lie in the folder `path`.
///
/// Options that reading shares (`csv.*`) are looked up in the table's definition and left in
/// `options`.
pub(crate) fn open_sink(
    spec: &TableSpec,
    options: &mut Options,
    path: PathBuf,
    format: &str,
) -> Result<Arc<dyn SinkConnector>> {
    let mut all = Options::new(&spec.name, spec.options.clone());
    let encoding = Encoding::parse(&mut all, format, options.text("compression").as_deref())?;
    let bytes_max = options.size("sink.rolling-policy.file-size")?.unwrap_or(FILE_BYTES_DEFAULT);
    let schema = written_schema(spec);
    let partitioning = Partitioning::new(&spec.name, &schema, &spec.partition_keys)?;
    encoding.check(&spec.name, partitioning.file_schema())?;
    let plan = Plan { folder: path, schema, partitioning, encoding, bytes_max };
    Ok(Arc::new(FileSink(Arc::new(plan))))
}

/// Metadata columns tell of files that were read; they are not written.
fn written_schema(spec: &TableSpec) -> SchemaRef {
    let fields =
        spec.schema.fields().iter().filter(|field| !field.metadata().contains_key(TableSpec::METADATA_KEY));
    Arc::new(Schema::new(fields.cloned().collect::<Vec<_>>()))
}

/// What the connector and its writers share.
#[derive(Debug)]
struct Plan {
    folder: PathBuf,
    schema: SchemaRef,
    partitioning: Partitioning,
    encoding: Encoding,
    /// A part at least this large is closed.
    bytes_max: u64,
}

#[derive(Debug)]
struct FileSink(Arc<Plan>);

impl SinkConnector for FileSink {
    fn schema(&self) -> SchemaRef {
        self.0.schema.clone()
    }
    fn mode(&self) -> ChangelogMode {
        self.0.encoding.mode()
    }
    fn is_transactional(&self) -> bool {
        true
    }
    fn open(&self, context: SinkContext) -> Result<Box<dyn SinkWriter>> {
        if self.0.folder.is_file() {
            return Err(Error::invalid(format!(
                "{:?} is a file, but a sink writes into a folder",
                self.0.folder
            ))
            .with_hint("name a folder in 'path'"));
        }
        let names = PartNames::new(&context.job, context.index, context.generation, &self.0.encoding);
        Ok(Box::new(FileSinkWriter { plan: self.0.clone(), names, open: HashMap::new(), closed: Vec::new() }))
    }
    fn commit(&self, committables: &[Committable]) -> Result<()> {
        commit::commit(&self.0.folder, committables)
    }
    fn abort_dangling(&self, job: &str, keep: &[Committable]) -> Result<()> {
        commit::abort_dangling(&self.0.folder, job, keep)
    }
    fn committed_after(&self, job: &str, checkpoint: CheckpointId) -> Result<Option<String>> {
        commit::committed_after(&self.0.folder, job, checkpoint, self.mode())
    }
}

struct FileSinkWriter {
    plan: Arc<Plan>,
    names: PartNames,
    /// Parts that rows still go to, by partition folder (empty without partitions).
    open: HashMap<String, OpenPart>,
    /// Parts of the open transaction that are full.
    closed: Vec<FinishedPart>,
}

impl FileSinkWriter {
    fn write_partition(&mut self, partition: &str, batch: &ChangelogBatch) -> Result<()> {
        if !self.open.contains_key(partition) {
            self.make_room()?;
            let part = OpenPart::create(
                &self.plan.folder,
                partition,
                &mut self.names,
                &self.plan.encoding,
                batch.rows.schema_ref(),
            )?;
            self.open.insert(partition.into(), part);
        }
        let part = self.open.get_mut(partition).expect("it was just put there");
        part.write(batch)?;
        if part.bytes() >= self.plan.bytes_max {
            self.close(partition)?;
        }
        Ok(())
    }

    fn make_room(&mut self) -> Result<()> {
        if self.open.len() < OPEN_PARTS_MAX {
            return Ok(());
        }
        let largest = self.open.iter().max_by_key(|(partition, part)| (part.bytes(), *partition));
        let partition = largest.map(|(partition, _)| partition.clone()).unwrap_or_default();
        self.close(&partition)
    }

    fn close(&mut self, partition: &str) -> Result<()> {
        if let Some(part) = self.open.remove(partition) {
            self.closed.push(part.finish()?);
        }
        Ok(())
    }
}

impl SinkWriter for FileSinkWriter {
    fn write(&mut self, batch: &ChangelogBatch) -> Result<()> {
        let is_append =
            batch.kinds.as_ref().is_none_or(|kinds| kinds.iter().all(|kind| *kind == RowKind::Insert));
        if !is_append && self.plan.encoding.mode() == ChangelogMode::Append {
            return Err(Error::internal("a changelog with updates reached a filesystem sink"));
        }
        if batch.is_empty() {
            return Ok(());
        }
        let plan = self.plan.clone();
        for (partition, batch) in plan.partitioning.split(batch)? {
            self.write_partition(&partition, &batch)?;
        }
        Ok(())
    }

    fn end_epoch(&mut self) -> Result<()> {
        Ok(())
    }

    /// Everything that takes time (the last bytes of each part, fsync) is left to the returned
    /// work; later rows go to other files.
    fn pre_commit(&mut self, checkpoint: CheckpointId) -> Result<PreCommit> {
        let mut open: Vec<(String, OpenPart)> = self.open.drain().collect();
        let closed = std::mem::take(&mut self.closed);
        if open.is_empty() && closed.is_empty() {
            return Ok(PreCommit::nothing());
        }
        open.sort_by(|a, b| a.0.cmp(&b.0));
        let folder = self.plan.folder.clone();
        Ok(PreCommit::new(move || {
            let mut parts = closed;
            for (_, part) in open {
                parts.push(part.finish()?);
            }
            commit::prepare(&folder, checkpoint, &parts)
        }))
    }
}
