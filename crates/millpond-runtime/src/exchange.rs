//! Exchange: the sending end of an edge between two fragments.
//!
//! A hash exchange splits a batch by the key group of its key columns: one `take` that brings the
//! rows of each receiver together, then a slice per receiver. The hashes travel along, so that a
//! key is hashed once per exchange. Marks go to every receiver.
//!
//! ```text
//! batch ──hash, key group──▶ [0 0 0 | 1 1 | 3 3 3]  one take, a slice per task
//! ```

use std::sync::Arc;

use arrow::array::UInt32Array;
use millpond_core::key::{key_group, stable_hashes};
use millpond_core::{ChangelogBatch, Element, EpochMark, Error, KeyGroupRange, KeyHashes, Result};
use tokio::sync::mpsc;

use crate::graph::Exchange;

/// The sending end of an edge in one task.
#[derive(Debug)]
pub(crate) struct EdgeWriter {
    exchange: Exchange,
    max_parallelism: u16,
    /// One per receiving task; for a forward edge only the one of the same index.
    receivers: Vec<mpsc::Sender<Element>>,
}

impl EdgeWriter {
    pub(crate) fn new(
        exchange: Exchange,
        max_parallelism: u16,
        receivers: Vec<mpsc::Sender<Element>>,
    ) -> Self {
        assert!(!receivers.is_empty(), "an edge leads to at least one task");
        Self { exchange, max_parallelism, receivers }
    }

    /// Sends rows to the tasks that they belong to; waits while their channels are full.
    pub(crate) async fn send(&self, batch: ChangelogBatch) -> Result<()> {
        match &self.exchange {
            Exchange::Forward | Exchange::Single => self.send_to(0, Element::Batch(batch)).await,
            Exchange::Broadcast => self.send_all(&Element::Batch(batch)).await,
            Exchange::Hash(columns) => {
                for (task, part) in partition(batch, columns, self.max_parallelism, self.receivers.len())? {
                    self.send_to(task, Element::Batch(part)).await?;
                }
                Ok(())
            }
        }
    }

    /// Sends a mark to all tasks.
    pub(crate) async fn send_mark(&self, mark: &EpochMark) -> Result<()> {
        self.send_all(&Element::EpochEnd(mark.clone())).await
    }

    async fn send_all(&self, element: &Element) -> Result<()> {
        for task in 0..self.receivers.len() {
            self.send_to(task, element.clone()).await?;
        }
        Ok(())
    }

    /// A receiver that is gone has failed, and says why itself.
    async fn send_to(&self, task: usize, element: Element) -> Result<()> {
        self.receivers[task].send(element).await.map_err(|_| Error::cancelled())
    }
}

/// The parts of a batch by receiving task, in the order of the tasks, with their key hashes;
/// rows keep their order. Tasks without rows are left out.
pub(crate) fn partition(
    mut batch: ChangelogBatch,
    columns: &[usize],
    max_parallelism: u16,
    tasks: usize,
) -> Result<Vec<(usize, ChangelogBatch)>> {
    let keys: Vec<_> = columns.iter().map(|column| Arc::clone(batch.rows.column(*column))).collect();
    let hashes = stable_hashes(&keys, batch.num_rows())?;
    if tasks == 1 {
        batch.hashes = Some(hashes);
        return Ok(vec![(0, batch)]);
    }
    let (order, counts) = by_task(&hashes, max_parallelism, tasks);
    batch.hashes = Some(hashes);
    if let Some(task) = counts.iter().position(|count| *count == batch.num_rows()) {
        return Ok(vec![(task, batch)]);
    }
    let sorted = batch.take(&order)?;
    let mut offset = 0;
    let mut parts = Vec::with_capacity(tasks);
    for (task, count) in counts.into_iter().enumerate().filter(|(_, count)| *count > 0) {
        parts.push((task, sorted.slice(offset, count)));
        offset += count;
    }
    Ok(parts)
}

/// Row numbers ordered by receiving task (a stable counting sort), and the rows of each task.
fn by_task(hashes: &KeyHashes, max_parallelism: u16, tasks: usize) -> (UInt32Array, Vec<usize>) {
    let task_of =
        |hash: u64| KeyGroupRange::task_of(key_group(hash, max_parallelism), tasks, max_parallelism);
    let task_per_row: Vec<usize> = hashes.iter().map(|hash| task_of(*hash)).collect();
    let mut counts = vec![0; tasks];
    for task in &task_per_row {
        counts[*task] += 1;
    }
    let mut next = vec![0; tasks];
    for task in 1..tasks {
        next[task] = next[task - 1] + counts[task - 1];
    }
    let mut order = vec![0u32; hashes.len()];
    for (row, task) in task_per_row.into_iter().enumerate() {
        order[next[task]] = row as u32;
        next[task] += 1;
    }
    (order.into(), counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{rows, values};

    #[test]
    fn every_row_goes_to_the_task_that_owns_its_key_group_and_keeps_its_order() {
        let numbers: Vec<i64> = (0..500).map(|i| i % 97).collect();
        for tasks in [1, 2, 3, 4, 256] {
            let parts = partition(rows(&numbers), &[0], 256, tasks).unwrap();
            let mut seen = 0;
            for (task, part) in &parts {
                let range = KeyGroupRange::of_task(*task, tasks, 256);
                let hashes = part.hashes.as_ref().unwrap();
                assert_eq!(
                    hashes,
                    &stable_hashes(&[Arc::clone(part.rows.column(0))], part.num_rows()).unwrap()
                );
                assert!(hashes.iter().all(|hash| range.contains(key_group(*hash, 256))));
                let mine = values(part);
                let expected: Vec<i64> = numbers.iter().copied().filter(|n| mine.contains(n)).collect();
                assert_eq!(mine, expected, "order within a task");
                seen += mine.len();
            }
            assert_eq!(seen, numbers.len());
        }
    }

    #[test]
    fn a_batch_for_one_task_is_not_copied() {
        let parts = partition(rows(&[7, 7, 7]), &[0], 256, 4).unwrap();
        assert_eq!(parts.len(), 1);
        assert_eq!(values(&parts[0].1), [7, 7, 7]);
    }
}
