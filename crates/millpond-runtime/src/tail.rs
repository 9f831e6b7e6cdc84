//! Tails: where the rows of a fragment leave it – edges, a sink, or the client that asked.

use millpond_connect::{PreCommit, SinkWriter};
use millpond_core::{ChangelogBatch, CheckpointId, Element, EpochMark, Error, OperatorUid, Result};
use tokio::sync::mpsc;

use crate::exchange::EdgeWriter;

/// All tails of a task.
pub(crate) struct Tails(Vec<TailWriter>);

/// One tail of a task.
pub(crate) enum TailWriter {
    /// To another fragment.
    Edge(EdgeWriter),
    /// To a connector table.
    Sink(SinkTail),
    /// To the client.
    Client(mpsc::Sender<Result<Element>>),
}

/// A sink's writer in one task.
pub(crate) struct SinkTail {
    pub(crate) uid: OperatorUid,
    pub(crate) writer: Box<dyn SinkWriter>,
}

impl Tails {
    pub(crate) fn new(tails: Vec<TailWriter>) -> Self {
        assert!(!tails.is_empty(), "a fragment leads somewhere");
        Self(tails)
    }

    /// Sends rows to every tail. Columns are shared, not copied.
    pub(crate) async fn send(&mut self, batch: ChangelogBatch) -> Result<()> {
        let (last, others) = self.0.split_last_mut().expect("a task has at least one tail");
        for tail in others {
            tail.send(batch.clone()).await?;
        }
        last.send(batch).await
    }

    /// The epoch is complete: sinks publish it.
    pub(crate) fn end_epoch(&mut self) -> Result<()> {
        self.sinks().try_for_each(|sink| sink.writer.end_epoch())
    }

    /// Closes the sinks' transactions; the work that makes them durable is to be run elsewhere.
    pub(crate) fn pre_commit(&mut self, checkpoint: CheckpointId) -> Result<Vec<(OperatorUid, PreCommit)>> {
        self.sinks().map(|sink| Ok((sink.uid.clone(), sink.writer.pre_commit(checkpoint)?))).collect()
    }

    /// Sends the mark along edges and to the client.
    pub(crate) async fn send_mark(&mut self, mark: &EpochMark) -> Result<()> {
        for tail in &mut self.0 {
            match tail {
                TailWriter::Edge(edge) => edge.send_mark(mark).await?,
                TailWriter::Client(client) => to_client(client, Element::EpochEnd(mark.clone())).await?,
                TailWriter::Sink(_) => {}
            }
        }
        Ok(())
    }

    fn sinks(&mut self) -> impl Iterator<Item = &mut SinkTail> {
        self.0.iter_mut().filter_map(|tail| match tail {
            TailWriter::Sink(sink) => Some(sink),
            TailWriter::Edge(_) | TailWriter::Client(_) => None,
        })
    }
}

impl TailWriter {
    async fn send(&mut self, batch: ChangelogBatch) -> Result<()> {
        match self {
            TailWriter::Edge(edge) => edge.send(batch).await,
            TailWriter::Sink(sink) => sink.writer.write(&batch),
            TailWriter::Client(client) => to_client(client, Element::Batch(batch)).await,
        }
    }
}

/// A client that has gone away has cancelled its query.
async fn to_client(client: &mpsc::Sender<Result<Element>>, element: Element) -> Result<()> {
    client.send(Ok(element)).await.map_err(|_| Error::cancelled())
}
