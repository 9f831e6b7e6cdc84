//! What is taken back before it came, or without ever having come.
//!
//! Within an epoch a row may be taken back before it is added: paths of a plan that meet again do
//! not keep the order of their changes. At its end every row that was taken back must have been
//! there. Without a time to live one that was not is an error, which [`Owed`] finds at no cost
//! beside the updates; with one it may have been forgotten, and [`AggregateSet::meets`] tells
//! beforehand which rows of a batch may be taken back.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use arrow::array::{ArrayRef, UInt32Array};
use arrow::compute::take;
use millpond_core::Result;
use millpond_state::NO_SLOT;

use super::order_index::{Encoder, ascending};
use super::set::{AggregateSet, EvaluatedInput};
use super::side::{GroupedRows, RowsSide, Side, SideMut, ValuesSide};

/// What a side table is owed: values that were taken back more often than they came, rows that
/// were taken back and not found.
#[derive(Debug, Default)]
pub struct Owed {
    /// Slots of values whose count fell below zero, with their groups.
    pub(super) values: Vec<(u32, u32)>,
    /// Groups of the rows, and their values.
    pub(super) rows: Vec<(Vec<u32>, Vec<ArrayRef>)>,
}

impl Owed {
    pub(super) fn owe_rows(&mut self, groups: &[u32], values: &[ArrayRef], missing: &[u32]) -> Result<()> {
        if !missing.is_empty() {
            let of = missing.iter().map(|row| groups[*row as usize]).collect();
            let rows = UInt32Array::from(missing.to_vec());
            let values = values.iter().map(|column| Ok(take(column, &rows, None)?));
            self.rows.push((of, values.collect::<Result<_>>()?));
        }
        Ok(())
    }
}

/// Something that rows add to and take from: a group's rows, a value's rows.
struct Ledger {
    /// By row: which balance it changes; `NO_SLOT`: none.
    places: Vec<u32>,
    balances: Vec<i64>,
}

impl Ledger {
    fn may_lose(&self, row: usize) -> bool {
        self.places[row] == NO_SLOT || self.balances[self.places[row] as usize] > 0
    }

    fn add(&mut self, row: usize, sign: i64) {
        if self.places[row] != NO_SLOT {
            self.balances[self.places[row] as usize] += sign;
        }
    }
}

impl AggregateSet {
    /// Takes back what was owed when its row had not come yet. Gives a group that is still owed
    /// something, if there is one.
    pub fn settle(&self, side: usize, table: &mut SideMut<'_>) -> Result<Option<u32>> {
        let Some(owed) = table.owed.as_deref_mut() else { return Ok(None) };
        let (values, rows) = (std::mem::take(&mut owed.values), std::mem::take(&mut owed.rows));
        let is_below_zero = |slot: u32| {
            table.rows.columns().iter().take(self.counters(side)).any(|count| count.i64s()[slot as usize] < 0)
        };
        if let Some((_, group)) = values.into_iter().find(|(slot, _)| is_below_zero(*slot)) {
            return Ok(Some(group));
        }
        let Side::Rows(def) = &self.sides[side] else { return Ok(None) };
        for (groups, values) in rows {
            if let Some(missing) = def.take_rows_back(table, groups.clone(), &values)?.first() {
                return Ok(Some(groups[*missing as usize]));
            }
        }
        Ok(None)
    }

    fn counters(&self, side: usize) -> usize {
        match &self.sides[side] {
            Side::Values(side) => side.inputs.len(),
            Side::Rows(_) => 0,
        }
    }

    /// Which rows of a batch, one after another, are added or meet what they take back: a row of
    /// their group and, in each side table, their value. `counts` are the rows of the groups.
    pub fn meets(
        &self,
        counts: &[i64],
        sides: &mut [SideMut<'_>],
        rows: GroupedRows<'_>,
        inputs: &[EvaluatedInput],
    ) -> Result<Vec<bool>> {
        let mut ledgers = vec![group_ledger(counts, rows.slots)];
        for (side, table) in self.sides.iter().zip(sides) {
            match side {
                Side::Values(side) => ledgers.extend(side.ledgers(table, rows, inputs)?),
                Side::Rows(side) if side.distinct.is_none() => {
                    ledgers.push(side.ledger(table, rows, &inputs[side.input])?);
                }
                // Its rows come and go with the values that a ledger counts already.
                Side::Rows(_) => {}
            }
        }
        let mut meets = Vec::with_capacity(rows.slots.len());
        for row in 0..rows.slots.len() {
            let sign = rows.sign(row);
            let is_met = sign > 0 || ledgers.iter().all(|ledger| ledger.may_lose(row));
            if is_met {
                ledgers.iter_mut().for_each(|ledger| ledger.add(row, sign));
            }
            meets.push(is_met);
        }
        Ok(meets)
    }
}

fn group_ledger(counts: &[i64], slots: &[u32]) -> Ledger {
    let mut known = HashMap::new();
    let mut balances = Vec::new();
    let place = |slot: &u32| {
        *known.entry(*slot).or_insert_with(|| {
            balances.push(counts[*slot as usize]);
            balances.len() as u32 - 1
        })
    };
    Ledger { places: slots.iter().map(place).collect(), balances }
}

/// Rows with the same values in the same group have the same place. Gives places and, for each,
/// the first row that has it.
fn places_of(
    groups: &[u32],
    types: &[arrow::datatypes::DataType],
    values: &[ArrayRef],
) -> Result<(Vec<u32>, Vec<u32>)> {
    let order: Vec<_> = types.iter().map(|data_type| (data_type.clone(), ascending())).collect();
    let encoded = Encoder::new(&order)?.encode(values)?;
    let mut known: HashMap<(u32, &[u8]), u32> = HashMap::new();
    let (mut places, mut firsts) = (Vec::with_capacity(groups.len()), Vec::new());
    for (row, group) in groups.iter().enumerate() {
        places.push(match known.entry((*group, encoded.row(row))) {
            Entry::Occupied(place) => *place.get(),
            Entry::Vacant(place) => {
                firsts.push(row as u32);
                *place.insert(firsts.len() as u32 - 1)
            }
        });
    }
    Ok((places, firsts))
}

impl ValuesSide {
    /// A ledger per counter.
    fn ledgers(
        &self,
        table: &mut SideMut<'_>,
        rows: GroupedRows<'_>,
        inputs: &[EvaluatedInput],
    ) -> Result<Vec<Ledger>> {
        let values = &inputs[self.inputs[0]].values[..self.types.len()];
        let (places, firsts) = places_of(rows.slots, &self.types, values)?;
        let mut found = Vec::new();
        let (identity, hashes) = rows.identity_of(&firsts, values)?;
        table.rows.find(&identity, &hashes, &mut found)?;
        let ledger = |(counter, input): (usize, &usize)| {
            let counts = table.rows.columns()[counter].i64s();
            let count = |slot: &u32| if *slot == NO_SLOT { 0 } else { counts[*slot as usize] };
            let place = |(row, place): (usize, &u32)| {
                if inputs[*input].counts(row) { *place } else { NO_SLOT }
            };
            let places = places.iter().enumerate().map(place).collect();
            Ledger { places, balances: found.iter().map(count).collect() }
        };
        Ok(self.inputs.iter().enumerate().map(ledger).collect())
    }
}

impl RowsSide {
    fn ledger(
        &self,
        table: &mut SideMut<'_>,
        rows: GroupedRows<'_>,
        input: &EvaluatedInput,
    ) -> Result<Ledger> {
        let values = &input.values[..self.types.len()];
        let (mut places, firsts) = places_of(rows.slots, &self.types, values)?;
        let balances = match table.index.as_deref() {
            None => Vec::new(),
            Some(index) => {
                let groups: Vec<u32> = firsts.iter().map(|row| rows.slots[*row as usize]).collect();
                let firsts = UInt32Array::from(firsts);
                let values = values.iter().map(|column| Ok(take(column, &firsts, None)?));
                index.copies_of(&groups, &values.collect::<Result<Vec<_>>>()?, rows.slots.len())?
            }
        };
        let is_left_out = |row: usize| !input.counts(row);
        places
            .iter_mut()
            .enumerate()
            .filter(|(row, _)| is_left_out(*row))
            .for_each(|(_, place)| *place = NO_SLOT);
        Ok(Ledger { places, balances })
    }
}
