//! A time to live by key: when a row of either side last came or went.
//!
//! A join that counts partners cannot forget one row of a pair: the other would be shown alone
//! beside the pair that the consumer still has. So all rows of a key are forgotten together. The
//! keys follow from the rows of both sides, and are found anew after a restore.

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, TimestampMicrosecondType};
use millpond_core::{EpochTime, KeyHashes, Result, Timestamp};
use millpond_state::KeyIndex;

use super::Join;
use crate::ttl::TimeToLive;

#[derive(Debug)]
pub(super) struct KeyTimes {
    index: KeyIndex,
    ttl: TimeToLive,
    /// Scratch: the key of each row.
    slots: Vec<u32>,
}

impl KeyTimes {
    pub(super) fn new(types: &[DataType], ttl: i64) -> Result<Self> {
        Ok(Self { index: KeyIndex::new(types)?, ttl: TimeToLive::new(ttl), slots: Vec::new() })
    }

    /// Rows of these keys come or go.
    pub(super) fn touch(&mut self, keys: &[ArrayRef], hashes: &KeyHashes, now: EpochTime) -> Result<()> {
        self.index.upsert(keys, hashes, &mut self.slots)?;
        let step = self.ttl.step(now);
        self.slots.iter().for_each(|slot| {
            self.ttl.touch(*slot, step);
        });
        Ok(())
    }

    /// Rows of these keys were kept when their steps ended.
    fn restore(&mut self, keys: &[ArrayRef], hashes: &KeyHashes, since: &[i64]) -> Result<()> {
        self.index.upsert(keys, hashes, &mut self.slots)?;
        for (slot, since) in self.slots.iter().zip(since) {
            self.ttl.touch_at_least(*slot, self.ttl.step(Timestamp(since - 1)));
        }
        Ok(())
    }

    /// Takes out the keys whose time is over; `None` if there is none.
    fn expired(&mut self, now: EpochTime) -> Result<Option<Vec<ArrayRef>>> {
        let expired = self.ttl.expired(now);
        if expired.is_empty() {
            return Ok(None);
        }
        let keys = self.index.keys(&expired)?;
        expired.iter().for_each(|slot| self.index.remove(*slot));
        Ok(Some(keys))
    }

    pub(super) fn wake_after(&self, now: EpochTime) -> Option<EpochTime> {
        self.ttl.wake_after(now)
    }

    pub(super) fn bytes(&self) -> usize {
        self.index.bytes()
    }
}

impl Join {
    /// Forgets the keys whose time is over, with their rows on both sides.
    pub(super) fn forget_keys(&mut self, now: EpochTime) -> Result<()> {
        let Some(times) = &mut self.key_times else { return Ok(()) };
        if let Some(keys) = times.expired(now)? {
            self.left.table.forget_keys(&keys)?;
            self.right.table.forget_keys(&keys)?;
        }
        Ok(())
    }

    /// Finds the keys of the loaded rows.
    pub(super) fn restore_key_times(&mut self) -> Result<()> {
        let Some(times) = &mut self.key_times else { return Ok(()) };
        for side in [&mut self.left, &mut self.right] {
            for chunk in side.table.chunks() {
                let places = side.table.places(chunk);
                let rows: RecordBatch = side.table.rows_at(&places)?;
                let keys = side.key_columns(&rows);
                let hashes = millpond_core::key::stable_hashes(&keys, rows.num_rows())?;
                let since = rows.column(rows.num_columns() - 1).as_primitive::<TimestampMicrosecondType>();
                assert_eq!(since.null_count(), 0, "each row is kept since some time");
                times.restore(&keys, &hashes, since.values())?;
            }
        }
        Ok(())
    }
}
