//! Spilled rows in RocksDB: a database that nothing depends on once its process has ended.
//!
//! It has no log and is never synced. It is opened when the first row leaves memory, in a folder of
//! its own, which goes with it.

use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

use millpond_core::{Error, Result};
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamilyDescriptor, DB, DBCompressionType, Direction, IteratorMode,
    Options, ReadOptions, WriteBatch, WriteOptions,
};

use super::{failure, wipe};
use crate::files;
use crate::spill::{SpillStore, SpilledUnit};

/// Bytes of the block cache and of each of two write buffers.
const CACHE_BYTES: usize = 16 << 20;
const BUFFER_BYTES: usize = 8 << 20;
const FAMILY: &str = "default";

/// The spilled rows of a process.
pub(crate) struct RocksSpill {
    folder: PathBuf,
    db: OnceLock<DB>,
    /// Held while the database is being opened.
    opening: Mutex<()>,
}

impl RocksSpill {
    /// Nothing is written before the first row comes.
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder, db: OnceLock::new(), opening: Mutex::new(()) }
    }

    fn db(&self) -> Result<&DB> {
        let _opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(db) = self.db.get() {
            return Ok(db);
        }
        wipe(&self.folder)?;
        files::ensure_folder(&self.folder)?;
        let options = options();
        let family = ColumnFamilyDescriptor::new(FAMILY, options.clone());
        let db = DB::open_cf_descriptors(&options, &self.folder, [family])
            .map_err(|e| failure(format!("open {:?}", self.folder), &e))?;
        Ok(self.db.get_or_init(|| db))
    }
}

impl Drop for RocksSpill {
    fn drop(&mut self) {
        if self.db.take().is_some()
            && let Err(error) = wipe(&self.folder)
        {
            tracing::warn!(%error, "spilled state stays behind; it may be removed");
        }
    }
}

impl std::fmt::Debug for RocksSpill {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RocksSpill").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl SpillStore for RocksSpill {
    fn write(&self, puts: &[SpilledUnit], deletes: &[Vec<u8>]) -> Result<()> {
        let mut batch = WriteBatch::default();
        puts.iter().for_each(|(key, rows)| batch.put(key, rows));
        deletes.iter().for_each(|key| batch.delete(key));
        self.db()?.write_opt(batch, &unlogged()).map_err(|e| failure("spill rows", &e))
    }

    fn read(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>> {
        let db = self.db()?;
        let family = db.cf_handle(FAMILY).ok_or_else(|| Error::internal("RocksDB has no default family"))?;
        let read = db.batched_multi_get_cf(&family, keys, true);
        read.into_iter()
            .map(|rows| Ok(rows.map_err(|e| failure("read spilled rows", &e))?.map(|rows| rows.to_vec())))
            .collect()
    }

    fn scan(&self, from: &[u8], to: &[u8], max: usize) -> Result<Vec<SpilledUnit>> {
        let mut options = ReadOptions::default();
        options.set_iterate_upper_bound(to.to_vec());
        options.fill_cache(false);
        let units = self.db()?.iterator_opt(IteratorMode::From(from, Direction::Forward), options);
        units
            .take(max)
            .map(|unit| {
                let (key, rows) = unit.map_err(|e| failure("read spilled rows", &e))?;
                Ok((key.into_vec(), rows.into_vec()))
            })
            .collect()
    }

    fn clear(&self, from: &[u8], to: &[u8]) -> Result<()> {
        let Some(db) = self.db.get() else { return Ok(()) };
        let mut batch = WriteBatch::default();
        batch.delete_range(from, to);
        db.write_opt(batch, &unlogged()).map_err(|e| failure("remove spilled rows", &e))
    }
}

fn unlogged() -> WriteOptions {
    let mut options = WriteOptions::default();
    options.disable_wal(true);
    options
}

fn options() -> Options {
    let mut blocks = BlockBasedOptions::default();
    blocks.set_bloom_filter(10.0, false);
    blocks.set_block_cache(&Cache::new_lru_cache(CACHE_BYTES));
    blocks.set_cache_index_and_filter_blocks(true);
    let mut options = super::options();
    options.create_missing_column_families(true);
    options.set_block_based_table_factory(&blocks);
    options.set_compression_type(DBCompressionType::Lz4);
    options.set_write_buffer_size(BUFFER_BYTES);
    options.set_max_write_buffer_number(2);
    options
}
