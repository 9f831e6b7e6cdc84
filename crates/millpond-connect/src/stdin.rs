//! The connector `stdin`: rows that another program writes to ours.
//!
//! ```text
//! producer | millpond data -f job.sql
//! ```
//!
//! What has been read from the pipe cannot be read again, so whole lines go to the replay log first,
//! if there is a data directory. A job that is started again first reads the log, from its last
//! checkpoint on, then what the new pipe brings. The input ends with the pipe.

use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::datatypes::SchemaRef;
use memchr::{memchr, memrchr};
use millpond_core::limits::RECORD_BYTES_MAX;
use millpond_core::{ChangelogMode, Error, Result};

use crate::connector::{ConnectorTable, Position, ReaderContext, SourceConnector, Split, SplitReader};
use crate::factory::TableSpec;
use crate::logged::{Texts, needed_from, record_of};
use crate::options::Options;
use crate::replay_log::ReplayLog;

/// The connector's own options.
pub(crate) const OPTIONS: &[&str] = &[];
const SPLIT: &str = "stdin";

/// Bytes taken from the pipe at once.
const BLOCK_BYTES: usize = 256 << 10;
/// Bytes in the log that the job has not read yet, at most: the pipe waits.
const AHEAD_BYTES: u64 = 16 << 20;

/// The pipe, until somebody reads it.
static PIPE: Mutex<Option<Box<dyn Read + Send>>> = Mutex::new(None);

/// Offers the standard input, or another pipe, to the one table that reads it. Without an offer
/// such a table is refused: a shell and a script from `-` read the standard input themselves.
pub fn offer_stdin(pipe: Box<dyn Read + Send>) {
    *PIPE.lock().unwrap_or_else(PoisonError::into_inner) = Some(pipe);
}

/// A table that is read from the pipe.
pub(crate) fn open(spec: &TableSpec, options: &mut Options) -> Result<ConnectorTable> {
    let texts = Texts::take(spec, options, "stdin")?;
    Ok(ConnectorTable { source: Some(Arc::new(Stdin(texts))), ..ConnectorTable::default() })
}

#[derive(Debug)]
struct Stdin(Texts);

impl SourceConnector for Stdin {
    fn schema(&self) -> SchemaRef {
        self.0.schema()
    }
    fn is_bounded(&self) -> bool {
        true
    }
    fn mode(&self) -> ChangelogMode {
        self.0.mode()
    }
    fn splits(&self) -> Result<Vec<Split>> {
        Ok(vec![Split { id: SPLIT.into() }])
    }
    fn discovery_interval(&self) -> Option<i64> {
        None
    }
    fn open(
        &self,
        _: &Split,
        position: Option<&Position>,
        context: ReaderContext,
    ) -> Result<Box<dyn SplitReader>> {
        let log = ReplayLog::open(context.log_dir.as_deref())?;
        let pipe = PIPE.lock().unwrap_or_else(PoisonError::into_inner).take();
        match pipe {
            Some(pipe) => {
                let log = Arc::clone(&log);
                let texts = self.0.clone();
                let copy = move || copy(pipe, &log, &texts);
                let started = std::thread::Builder::new().name("stdin".into()).spawn(copy);
                started.map_err(|error| Error::io("start a thread for stdin", &error))?;
            }
            // A job that starts again after a failure finds the thread of the last time at work.
            None if log.is_fed() => {}
            None => {
                return Err(Error::invalid(format!(
                    "table {:?} cannot read the standard input",
                    self.0.table()
                ))
                .with_detail("a shell, a script from '-' or another table reads it")
                .with_hint(
                    "give the script by -f FILE or -c TEXT, and one table with the connector 'stdin'",
                ));
            }
        }
        Ok(Box::new(self.0.read_log(&log, position, context)?))
    }
    fn release(&self, log: Option<&std::path::Path>, positions: &[Position]) -> Result<()> {
        release(log, positions)
    }
}

/// Lets go of what no kept checkpoint needs.
pub(crate) fn release(log: Option<&std::path::Path>, positions: &[Position]) -> Result<()> {
    let Some(folder) = log else { return Ok(()) };
    let log = ReplayLog::open(Some(folder))?;
    needed_from(&log, positions)?.map_or(Ok(()), |offset| log.release(offset))
}

/// Copies whole rows from the pipe to the log, until one of them ends. Where the text begins with a
/// header, each record does.
fn copy(mut pipe: Box<dyn Read + Send>, log: &ReplayLog, texts: &Texts) {
    log.feed();
    let (mut held, mut header) = (Vec::new(), None);
    let mut block = vec![0; BLOCK_BYTES];
    loop {
        log.wait_for_reader(AHEAD_BYTES);
        let read = match pipe.read(&mut block) {
            Ok(read) => read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => {
                log.fail(Error::io("read the standard input", &error));
                return;
            }
        };
        held.extend_from_slice(&block[..read]);
        let rows = match whole_rows(&held, texts.has_quotes()) {
            // The rest of the input; or a row that is too large, for the decoder to reject.
            _ if read == 0 => held.len(),
            0 if held.len() > RECORD_BYTES_MAX => held.len(),
            rows => rows,
        };
        if rows > 0 {
            let first = header.is_none();
            let header: &mut Vec<u8> = header.get_or_insert_with(|| match texts.begins_with_header() {
                true => held[..memchr(b'\n', &held).map_or(held.len(), |at| at + 1)].to_vec(),
                false => Vec::new(),
            });
            let repeated: &[u8] = if first { &[] } else { header };
            if let Err(error) = log.append(&record_of(b"", &[repeated, &held[..rows]].concat())) {
                log.fail(error);
                return;
            }
            held.drain(..rows);
        }
        if read == 0 {
            log.close();
            return;
        }
    }
}

/// The length of the whole lines in a text; a line break between quotes ends none.
fn whole_rows(text: &[u8], has_quotes: bool) -> usize {
    if !has_quotes {
        return memrchr(b'\n', text).map_or(0, |at| at + 1);
    }
    let (mut rows, mut quoted) = (0, false);
    for at in memchr::memchr2_iter(b'"', b'\n', text) {
        match text[at] {
            b'"' => quoted = !quoted,
            _ if !quoted => rows = at + 1,
            _ => {}
        }
    }
    rows
}

#[cfg(test)]
mod tests;
