//! One part file while it is written: its names, its encoding, its length and checksum.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use flate2::write::GzEncoder;
use millpond_core::{ChangelogBatch, ChangelogMode, CheckpointId, Error, Result};

use crate::format::csv_encoder::{CsvEncoder, CsvStyle};
use crate::format::debezium_encoder::DebeziumEncoder;
use crate::format::json_encoder::JsonEncoder;
use crate::format::parquet_encoder::ParquetEncoder;
use crate::options::Options;

pub(super) const IN_PROGRESS: &str = ".inprogress";
pub(super) const PENDING: &str = ".pending";
const PREFIX: &str = "part-";

/// Text that is gathered before it goes to the file.
const BUFFER_BYTES: usize = 64 << 10;

/// How rows become bytes.
#[derive(Debug, Clone)]
pub(super) enum Encoding {
    Csv(CsvStyle, Compression),
    Json(Compression),
    Debezium(Compression),
    Parquet,
}

/// How a text file is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Gzip,
    Zstd,
}

impl Encoding {
    /// The encoding of a format that can be written.
    pub(super) fn parse(options: &mut Options, format: &str, compression: Option<&str>) -> Result<Self> {
        let compressed = match compression {
            None | Some("none") => Compression::None,
            Some("gzip" | "gz") => Compression::Gzip,
            Some("zstd" | "zst") => Compression::Zstd,
            Some(other) => {
                return Err(Error::invalid(format!(
                    "option 'compression' of table {:?}: {other:?} is not known",
                    options.table()
                ))
                .with_hint("use one of none, gzip, zstd"));
            }
        };
        match format {
            "csv" => Ok(Self::Csv(CsvStyle::parse(options)?, compressed)),
            "json" => Ok(Self::Json(compressed)),
            "debezium-json" => Ok(Self::Debezium(compressed)),
            "parquet" if compression.is_none() => Ok(Self::Parquet),
            "parquet" => {
                Err(Error::invalid(format!("table {:?}: parquet compresses by itself", options.table()))
                    .with_hint("remove the option 'compression'"))
            }
            other => Err(Error::invalid(format!(
                "table {:?}: the format {other:?} cannot be written",
                options.table()
            ))
            .with_hint("use one of csv, json, debezium-json, parquet")),
        }
    }

    /// Refuses columns that the encoding cannot hold.
    pub(super) fn check(&self, table: &str, schema: &Schema) -> Result<()> {
        let empty = RecordBatch::new_empty(schema.clone().into());
        let checked = match self {
            Self::Csv(style, _) => CsvEncoder::new(style.clone()).encode(&empty, &mut String::new()),
            Self::Json(_) | Self::Debezium(_) => JsonEncoder::new(schema).encode(&empty, &mut String::new()),
            Self::Parquet => ParquetEncoder::new(io::sink(), schema).map(drop),
        };
        checked.map_err(|error| error.context(format!("table {table:?} cannot be written")))
    }

    /// The changelog that it can hold.
    pub(super) fn mode(&self) -> ChangelogMode {
        match self {
            Self::Csv(..) | Self::Json(_) | Self::Parquet => ChangelogMode::Append,
            Self::Debezium(_) => ChangelogMode::Retract,
        }
    }

    /// The end of a part's final name.
    pub(super) fn extension(&self) -> &'static str {
        match self {
            Self::Csv(_, Compression::None) => "csv",
            Self::Csv(_, Compression::Gzip) => "csv.gz",
            Self::Csv(_, Compression::Zstd) => "csv.zst",
            Self::Json(Compression::None) | Self::Debezium(Compression::None) => "json",
            Self::Json(Compression::Gzip) | Self::Debezium(Compression::Gzip) => "json.gz",
            Self::Json(Compression::Zstd) | Self::Debezium(Compression::Zstd) => "json.zst",
            Self::Parquet => "parquet",
        }
    }
}

/// Gives the parts of one writer their names.
#[derive(Debug)]
pub(super) struct PartNames {
    /// What stands before the checkpoint.
    before: String,
    /// What stands between the checkpoint and the number of the part.
    between: String,
    extension: &'static str,
    next: u64,
}

impl PartNames {
    /// Files of changes are read in the order of their names, so what a later checkpoint of the job
    /// promises must come later, whichever of its tasks wrote it.
    pub(super) fn new(job: &str, task: usize, generation: u64, encoding: &Encoding) -> Self {
        let job = file_name_of_job(job);
        let (before, between) = match encoding.mode() {
            ChangelogMode::Append => (format!("{PREFIX}{job}-{task}-{generation}-"), String::new()),
            ChangelogMode::Upsert | ChangelogMode::Retract => {
                (format!("{PREFIX}{job}-{generation}-"), format!("{task}-"))
            }
        };
        Self { before, between, extension: encoding.extension(), next: 0 }
    }

    fn next(&mut self, partition: &str) -> PartPlace {
        self.next += 1;
        PartPlace {
            partition: partition.into(),
            before: self.before.clone(),
            between: self.between.clone(),
            number: self.next - 1,
            extension: self.extension,
        }
    }
}

/// A job's id as a part of a file name: other characters are percent-encoded.
fn file_name_of_job(job: &str) -> String {
    let mut out = String::new();
    for byte in job.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => out.push(byte as char),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// Whether a hidden file was begun or prepared by `job`: its name read from the right, since a
/// job's id may itself hold dashes and digits.
pub(super) fn is_unfinished_part_of(file_name: &str, job: &str) -> bool {
    let hidden = file_name.strip_prefix('.');
    let begun = hidden.and_then(|name| name.strip_suffix(IN_PROGRESS));
    let prepared = hidden.and_then(|name| name.strip_suffix(PENDING));
    let of_job = |name: &str, count| numbers(name, job, count).is_some();
    begun.is_some_and(|name| of_job(name, 3)) || prepared.is_some_and(|name| of_job(name, 4))
}

/// The checkpoint that a visible file of `job` belongs to.
pub(super) fn checkpoint_of(file_name: &str, job: &str, mode: ChangelogMode) -> Option<CheckpointId> {
    let numbers = numbers(file_name, job, 4)?;
    Some(CheckpointId(match mode {
        ChangelogMode::Append => numbers[1],
        ChangelogMode::Upsert | ChangelogMode::Retract => numbers[2],
    }))
}

/// The last `count` numbers of a part's name, from the right, if `job` stands before them.
fn numbers(name: &str, job: &str, count: usize) -> Option<Vec<u64>> {
    let name = name.strip_prefix(PREFIX)?;
    let stem = name.split_once('.').map_or(name, |(stem, _)| stem);
    let mut fields = stem.rsplitn(count + 1, '-');
    let numbers =
        fields.by_ref().take(count).map(|field| field.parse().ok()).collect::<Option<Vec<u64>>>()?;
    (numbers.len() == count && fields.next() == Some(&file_name_of_job(job))).then_some(numbers)
}

/// A part that rows go to.
pub(super) struct OpenPart {
    place: PartPlace,
    content: Content,
}

/// Where a part lies: its folder below the sink's, and its names.
#[derive(Debug, Clone)]
pub(super) struct PartPlace {
    partition: String,
    before: String,
    between: String,
    number: u64,
    extension: &'static str,
}

impl PartPlace {
    pub(super) fn in_progress(&self) -> String {
        self.with(".", None, IN_PROGRESS)
    }
    /// The final path, relative to the sink's folder.
    pub(super) fn path(&self, checkpoint: CheckpointId) -> String {
        self.with("", Some(checkpoint), "")
    }
    pub(super) fn pending(&self, checkpoint: CheckpointId) -> String {
        self.with(".", Some(checkpoint), PENDING)
    }
    /// The same place under names that nobody has: two branches of a job may write to one table.
    pub(super) fn free(mut self, folder: &Path, checkpoint: CheckpointId) -> Self {
        let taken = |name: String| folder.join(name).exists();
        while taken(self.pending(checkpoint)) || taken(self.path(checkpoint)) {
            self.number += 1;
        }
        self
    }
    fn with(&self, prefix: &str, checkpoint: Option<CheckpointId>, suffix: &str) -> String {
        let Self { partition, before, between, number, extension } = self;
        let separator = if partition.is_empty() { "" } else { "/" };
        let checkpoint = checkpoint.map_or_else(String::new, |checkpoint| format!("{checkpoint}-"));
        format!("{partition}{separator}{prefix}{before}{checkpoint}{between}{number}.{extension}{suffix}")
    }
}

/// A part that is complete but not yet durable.
#[derive(Debug)]
pub(super) struct FinishedPart {
    pub(super) place: PartPlace,
    pub(super) bytes: u64,
    pub(super) crc32c: u32,
}

impl OpenPart {
    /// Creates the next part of a partition, and its folders where they are missing.
    pub(super) fn create(
        folder: &Path,
        partition: &str,
        names: &mut PartNames,
        encoding: &Encoding,
        schema: &Schema,
    ) -> Result<Self> {
        let home = folder.join(partition);
        std::fs::create_dir_all(&home)
            .map_err(|error| Error::io(format!("create the folder {home:?}"), &error))?;
        let (place, file) = claim(folder, partition, names)?;
        Ok(Self { place, content: Content::begin(file, encoding, schema)? })
    }

    pub(super) fn write(&mut self, batch: &ChangelogBatch) -> Result<()> {
        self.content.write(batch)
    }

    /// Bytes so far, about.
    pub(super) fn bytes(&self) -> u64 {
        match &self.content {
            Content::Text(text) => text.buffer.len() as u64 + text.output.file().bytes,
            Content::Parquet(encoder) => encoder.bytes(),
        }
    }

    pub(super) fn finish(self) -> Result<FinishedPart> {
        let file = match self.content {
            Content::Text(text) => text.finish()?,
            Content::Parquet(encoder) => encoder.finish()?,
        };
        Ok(FinishedPart { place: self.place, bytes: file.bytes, crc32c: file.crc32c })
    }
}

/// Finds a name that nobody has and creates its file.
fn claim(folder: &Path, partition: &str, names: &mut PartNames) -> Result<(PartPlace, CountedFile)> {
    loop {
        let place = names.next(partition);
        let path = folder.join(place.in_progress());
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(file) => return Ok((place, CountedFile { file, path, bytes: 0, crc32c: 0 })),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Error::io(format!("create {path:?}"), &error)),
        }
    }
}

enum Content {
    Text(Box<TextPart>),
    Parquet(Box<ParquetEncoder<CountedFile>>),
}

impl Content {
    fn begin(file: CountedFile, encoding: &Encoding, schema: &Schema) -> Result<Self> {
        let (encoder, compression, buffer) = match encoding {
            Encoding::Parquet => return Ok(Self::Parquet(Box::new(ParquetEncoder::new(file, schema)?))),
            Encoding::Csv(style, compression) => {
                let encoder = CsvEncoder::new(style.clone());
                let mut header = String::new();
                encoder.begin(schema, &mut header)?;
                (TextEncoder::Csv(encoder), *compression, header)
            }
            Encoding::Json(compression) => {
                (TextEncoder::Json(JsonEncoder::new(schema)), *compression, String::new())
            }
            Encoding::Debezium(compression) => {
                (TextEncoder::Debezium(DebeziumEncoder::new(schema)), *compression, String::new())
            }
        };
        let output = TextOutput::begin(file, compression)?;
        Ok(Self::Text(Box::new(TextPart { encoder, output, buffer })))
    }

    fn write(&mut self, batch: &ChangelogBatch) -> Result<()> {
        match self {
            Self::Text(text) => text.write(batch),
            Self::Parquet(encoder) => encoder.write(&batch.rows),
        }
    }
}

enum TextEncoder {
    Csv(CsvEncoder),
    Json(JsonEncoder),
    Debezium(DebeziumEncoder),
}

struct TextPart {
    encoder: TextEncoder,
    output: TextOutput,
    buffer: String,
}

impl TextPart {
    fn write(&mut self, batch: &ChangelogBatch) -> Result<()> {
        match &self.encoder {
            TextEncoder::Csv(encoder) => encoder.encode(&batch.rows, &mut self.buffer)?,
            TextEncoder::Json(encoder) => encoder.encode(&batch.rows, &mut self.buffer)?,
            TextEncoder::Debezium(encoder) => encoder.encode(batch, &mut self.buffer)?,
        }
        if self.buffer.len() >= BUFFER_BYTES {
            self.drain()?;
        }
        Ok(())
    }

    fn drain(&mut self) -> Result<()> {
        let written = self.output.write_all(self.buffer.as_bytes());
        written.map_err(|error| Error::io(format!("write {:?}", self.output.file().path), &error))?;
        self.buffer.clear();
        Ok(())
    }

    fn finish(mut self) -> Result<CountedFile> {
        self.drain()?;
        let path = self.output.file().path.clone();
        self.output.finish().map_err(|error| Error::io(format!("write {path:?}"), &error))
    }
}

enum TextOutput {
    Plain(CountedFile),
    Gzip(GzEncoder<CountedFile>),
    Zstd(zstd::Encoder<'static, CountedFile>),
}

impl TextOutput {
    fn begin(file: CountedFile, compression: Compression) -> Result<Self> {
        Ok(match compression {
            Compression::None => Self::Plain(file),
            Compression::Gzip => Self::Gzip(GzEncoder::new(file, flate2::Compression::fast())),
            Compression::Zstd => {
                let path = file.path.clone();
                Self::Zstd(
                    zstd::Encoder::new(file, 1)
                        .map_err(|error| Error::io(format!("write {path:?}"), &error))?,
                )
            }
        })
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(file) => file.write_all(bytes),
            Self::Gzip(encoder) => encoder.write_all(bytes),
            Self::Zstd(encoder) => encoder.write_all(bytes),
        }
    }

    fn file(&self) -> &CountedFile {
        match self {
            Self::Plain(file) => file,
            Self::Gzip(encoder) => encoder.get_ref(),
            Self::Zstd(encoder) => encoder.get_ref(),
        }
    }

    fn finish(self) -> io::Result<CountedFile> {
        match self {
            Self::Plain(file) => Ok(file),
            Self::Gzip(encoder) => encoder.finish(),
            Self::Zstd(encoder) => encoder.finish(),
        }
    }
}

/// A file that knows the length and checksum of what was written to it.
struct CountedFile {
    file: File,
    path: PathBuf,
    bytes: u64,
    crc32c: u32,
}

impl Write for CountedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.bytes += written as u64;
        self.crc32c = crc32c::crc32c_append(self.crc32c, &bytes[..written]);
        Ok(written)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
