//! One aggregate over some rows at once, as batches need it.

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::Schema;
use millpond_core::key::stable_hashes;
use millpond_core::{ChangelogMode, Result};
use millpond_state::KeyedRows;

use super::call::AggregateCall;
use super::order_index::OrderIndex;
use super::set::AggregateSet;
use super::side::{GroupedRows, SideMut, SideRef};

/// The result of a call over all rows of some batches, one value.
pub fn one_group(
    call: &AggregateCall,
    schema: &Schema,
    batches: &[RecordBatch],
    mode: ChangelogMode,
) -> Result<ArrayRef> {
    let set = AggregateSet::new(std::slice::from_ref(call), schema, mode)?;
    let mut groups = KeyedRows::new(&[], set.state_fields())?;
    let mut slots = Vec::new();
    groups.slots_for(&[], &stable_hashes(&[], 1)?, &mut slots)?;
    let mut sides: Vec<(KeyedRows, Option<OrderIndex>)> = Vec::new();
    for (number, side) in set.side_tables().into_iter().enumerate() {
        let types: Vec<_> = side.identity.iter().map(|field| field.data_type().clone()).collect();
        sides.push((KeyedRows::new(&types, &side.values)?, set.new_index(number)?));
    }
    let mut arrived = 0;
    for batch in batches {
        let rows = batch.num_rows();
        let slots = vec![slots[0]; rows];
        let hashes = stable_hashes(&[], rows)?;
        let arrivals: Vec<i64> = (arrived..arrived + rows as i64).collect();
        arrived += rows as i64;
        let inputs = set.evaluate(batch)?;
        let rows =
            GroupedRows { keys: &[], hashes: &hashes, slots: &slots, signs: None, arrivals: &arrivals };
        let mut sides: Vec<SideMut<'_>> = sides
            .iter_mut()
            .map(|(rows, index)| SideMut { rows, index: index.as_mut(), owed: None })
            .collect();
        set.update(groups.columns_mut(), &mut sides, rows, &inputs)?;
    }
    let sides: Vec<SideRef<'_>> =
        sides.iter().map(|(rows, index)| SideRef { rows, index: index.as_ref() }).collect();
    let mut results = set.results(groups.columns(), &sides, &slots, |_| Ok(Vec::new()))?;
    Ok(results.remove(0))
}
