//! Partners of stored rows: the counts on which outer, semi and anti joins stand.

use arrow::array::RecordBatchOptions;

use super::*;

impl MultimapTable {
    /// The partners of a row; `None` if it is gone.
    pub fn partners(&self, id: RowId) -> Option<Partners> {
        let chunk = self.chunks.get(id.chunk as usize)?.as_ref()?;
        if chunk.is_dead(id.row as usize) {
            return None;
        }
        chunk.partners.as_ref().map(|partners| partners[id.row as usize])
    }

    /// The partners of a row, to be changed; `None` if it is gone.
    pub fn partners_mut(&mut self, id: RowId) -> Option<&mut Partners> {
        let chunk = self.chunks.get_mut(id.chunk as usize)?.as_mut()?;
        if chunk.is_dead(id.row as usize) {
            return None;
        }
        chunk.partners.as_mut().map(|partners| &mut partners[id.row as usize])
    }

    /// Moves the last rows of sparse chunks, with their partners: no place is valid any more.
    pub fn settle(&mut self) -> Result<()> {
        let mut sparse = std::mem::take(&mut self.sparse);
        sparse.sort_unstable();
        sparse.dedup();
        for chunk in sparse.into_iter().filter(|chunk| self.is_sparse(*chunk)).collect::<Vec<_>>() {
            let (places, partners) = self.live_partners(chunk);
            let rows = self.clear_chunk(chunk)?;
            assert_eq!(rows.num_rows(), places.len(), "a chunk gives its live rows");
            let keys = self.keys(&rows, None)?;
            let first = self.append(rows, &keys)?;
            for (row, partners) in partners.into_iter().enumerate() {
                *self.partners_mut(first.plus(row)).expect("the row has just been added") = partners;
            }
        }
        Ok(())
    }

    /// Numbers of the chunks that hold rows.
    pub fn chunks(&self) -> Vec<u32> {
        (0..self.chunks.len() as u32).filter(|chunk| self.chunks[*chunk as usize].is_some()).collect()
    }

    /// Places of the live rows of a chunk.
    pub fn places(&self, chunk: u32) -> Vec<RowId> {
        let held = chunk_of(&self.chunks, RowId { chunk, row: 0 });
        let live = (0..held.rows()).filter(|row| !held.is_dead(*row));
        live.map(|row| RowId { chunk, row: row as u32 }).collect()
    }

    /// Rows at these places, all columns.
    pub fn rows_at(&mut self, places: &[RowId]) -> Result<RecordBatch> {
        let columns: Vec<usize> = (0..self.spec.rows.fields().len()).collect();
        let columns = self.gather(places, &columns)?;
        let options = RecordBatchOptions::new().with_row_count(Some(places.len()));
        Ok(RecordBatch::try_new_with_options(self.spec.rows.clone(), columns, &options)?)
    }

    fn live_partners(&self, chunk: u32) -> (Vec<RowId>, Vec<Partners>) {
        let ids = (0..chunk_of(&self.chunks, RowId { chunk, row: 0 }).rows() as u32)
            .map(|row| RowId { chunk, row });
        ids.filter_map(|id| self.partners(id).map(|partners| (id, partners))).unzip()
    }
}
