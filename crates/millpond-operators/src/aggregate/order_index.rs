//! The order index: finds the rows of each group of a side table in their order.
//!
//! It lives in memory only, beside a table that is keyed by the group's key, and is built anew from
//! it on restore. All groups share one B-tree, so that the least, the greatest and any row to be
//! taken back are found in O(log n), and a small group costs no more than its rows.
//!
//! ```text
//! (group's slot, encoded order) ─▶ slot of the row      ascending within a group
//! (group's slot, encoded row, arrival) ─▶ the same      only where rows may be taken back
//! ```
//!
//! Floats are made canonical before they are encoded: one NaN, above all numbers, and one zero.

use std::collections::BTreeMap;

use arrow::array::ArrayRef;
use arrow::compute::SortOptions;
use arrow::datatypes::DataType;
use arrow::row::{RowConverter, Rows, SortField};
use millpond_core::{Error, Result};
use millpond_state::key_index::canonical;

/// A group and the encoded place of a row in it.
type Place = (u32, Box<[u8]>);

/// Slots by place, and about how many bytes they take.
#[derive(Debug, Default)]
struct Places {
    slots: BTreeMap<Place, u32>,
    bytes: usize,
}

/// What a place takes beside its encoding: its entry in a node that is three quarters full, and an
/// allocation.
const PLACE_BYTES: usize = 56;

impl Places {
    fn insert(&mut self, place: Place, slot: u32) {
        let bytes = place.1.len() + PLACE_BYTES;
        if self.slots.insert(place, slot).is_none() {
            self.bytes += bytes;
        }
    }

    fn remove(&mut self, place: &Place) -> Option<u32> {
        let slot = self.slots.remove(place)?;
        self.bytes -= place.1.len() + PLACE_BYTES;
        Some(slot)
    }

    /// From a place on, ascending.
    fn from(&self, place: &Place) -> impl Iterator<Item = (&Place, &u32)> {
        self.slots.range::<Place, _>(place..)
    }
}

/// The order of the rows of a side table within their groups; see the module.
#[derive(Debug)]
pub struct OrderIndex {
    order: Encoder,
    rows: Places,
    /// Which slots of a values table are in it.
    marked: Vec<bool>,
    /// By the row itself, oldest copy first.
    copies: Option<(Encoder, Places)>,
}

impl OrderIndex {
    /// An index by columns of these types and directions.
    ///
    /// Errors: *Invalid* for a type that cannot be ordered.
    pub(super) fn new(order: &[(DataType, SortOptions)]) -> Result<Self> {
        Ok(Self { order: Encoder::new(order)?, rows: Places::default(), marked: Vec::new(), copies: None })
    }

    /// The same, which also finds rows by their values.
    pub(super) fn with_copies(mut self, values: &[DataType]) -> Result<Self> {
        let values: Vec<_> = values.iter().map(|data_type| (data_type.clone(), ascending())).collect();
        self.copies = Some((Encoder::new(&values)?, Places::default()));
        Ok(self)
    }

    /// Adds rows: the slots of their groups and their own, what orders them, and when they arrived.
    pub(super) fn insert(
        &mut self,
        groups: &[u32],
        slots: &[u32],
        order: &[ArrayRef],
        arrivals: Option<&[i64]>,
    ) -> Result<()> {
        let order = self.order.encode(order)?;
        for (row, (group, slot)) in groups.iter().zip(slots).enumerate() {
            self.rows.insert((*group, place(order.row(row), arrivals, row)), *slot);
        }
        Ok(())
    }

    /// Adds the copies of rows that [`OrderIndex::insert`] has been told of.
    pub(super) fn insert_copies(
        &mut self,
        groups: &[u32],
        slots: &[u32],
        values: &[ArrayRef],
        arrivals: &[i64],
    ) -> Result<()> {
        let Some((encoder, copies)) = &mut self.copies else { return Ok(()) };
        let values = encoder.encode(values)?;
        for (row, (group, slot)) in groups.iter().zip(slots).enumerate() {
            copies.insert((*group, place(values.row(row), Some(arrivals), row)), *slot);
        }
        Ok(())
    }

    /// Remembers whether a slot is in the index; tells whether that is new.
    pub(super) fn mark_as(&mut self, slot: u32, is_in: bool) -> bool {
        let slot = slot as usize;
        if slot >= self.marked.len() {
            self.marked.resize(slot + 1, false);
        }
        std::mem::replace(&mut self.marked[slot], is_in) != is_in
    }

    /// Takes rows out.
    pub(super) fn remove(
        &mut self,
        groups: &[u32],
        order: &[ArrayRef],
        arrivals: Option<&[i64]>,
    ) -> Result<()> {
        let order = self.order.encode(order)?;
        for (row, group) in groups.iter().enumerate() {
            let removed = self.rows.remove(&(*group, place(order.row(row), arrivals, row)));
            if removed.is_none() {
                return Err(Error::internal("a row of an aggregate is not in its order"));
            }
        }
        Ok(())
    }

    /// Takes all rows of these groups out; `slots` are those of the rows.
    pub(crate) fn forget(&mut self, groups: &[u32], slots: &[u32]) {
        fn remove(places: &mut Places, group: u32) {
            let from: Place = (group, Box::default());
            let of_group = places.from(&from).take_while(|(place, _)| place.0 == group);
            let gone: Vec<Place> = of_group.map(|(place, _)| place.clone()).collect();
            gone.iter().for_each(|place| {
                places.remove(place);
            });
        }
        for group in groups {
            remove(&mut self.rows, *group);
            if let Some((_, copies)) = &mut self.copies {
                remove(copies, *group);
            }
        }
        for slot in slots {
            self.mark_as(*slot, false);
        }
    }

    /// Takes the oldest copy of each row out of the copies; gives their slots, `None` where there is
    /// no such row.
    pub(super) fn take_copies(&mut self, groups: &[u32], values: &[ArrayRef]) -> Result<Vec<Option<u32>>> {
        let (encoder, copies) = self
            .copies
            .as_mut()
            .ok_or_else(|| Error::internal("an append-only aggregate takes a row back"))?;
        let values = encoder.encode(values)?;
        let mut slots = Vec::with_capacity(groups.len());
        for (row, group) in groups.iter().enumerate() {
            let value = values.row(row);
            let from: Place = (*group, value.into());
            let oldest = copies.from(&from).next().filter(|(place, _)| {
                // Encodings are free of prefixes, so that only the arrival may follow.
                place.0 == *group && place.1.starts_with(value)
            });
            let Some((place, slot)) = oldest.map(|(place, slot)| (place.clone(), *slot)) else {
                slots.push(None);
                continue;
            };
            copies.remove(&place);
            slots.push(Some(slot));
        }
        Ok(slots)
    }

    /// How many copies of each row there are, counted up to `most`.
    pub(super) fn copies_of(&self, groups: &[u32], values: &[ArrayRef], most: usize) -> Result<Vec<i64>> {
        let Some((encoder, copies)) = &self.copies else { return Ok(vec![0; groups.len()]) };
        let values = encoder.encode(values)?;
        let count = |(row, group): (usize, &u32)| {
            let value = values.row(row);
            let from: Place = (*group, value.into());
            let of_row =
                copies.from(&from).take_while(|(place, _)| place.0 == *group && place.1.starts_with(value));
            of_row.take(most).count() as i64
        };
        Ok(groups.iter().enumerate().map(count).collect())
    }

    /// Bytes held in memory, estimated.
    pub(crate) fn bytes(&self) -> usize {
        let copies = self.copies.as_ref().map_or(0, |(_, copies)| copies.bytes);
        self.rows.bytes + copies + self.marked.capacity()
    }

    /// The rows of a group, ascending.
    pub(super) fn of(&self, group: u32) -> impl DoubleEndedIterator<Item = u32> + '_ {
        let from: Place = (group, Box::default());
        let to = group.checked_add(1).map(|next| (next, Box::default()));
        let bounds = (
            std::ops::Bound::Included(from),
            to.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded),
        );
        self.rows.slots.range::<Place, _>(bounds).map(|(_, slot)| *slot)
    }
}

fn place(encoded: &[u8], arrivals: Option<&[i64]>, row: usize) -> Box<[u8]> {
    match arrivals {
        None => encoded.into(),
        // Arrivals are never negative, so that their bytes order like them.
        Some(arrivals) => [encoded, &arrivals[row].to_be_bytes()].concat().into(),
    }
}

/// NULLs sort lowest.
pub(super) fn ascending() -> SortOptions {
    SortOptions { descending: false, nulls_first: true }
}

/// Columns as bytes that compare like their rows.
#[derive(Debug)]
pub(super) struct Encoder {
    converter: RowConverter,
}

impl Encoder {
    pub(super) fn new(columns: &[(DataType, SortOptions)]) -> Result<Self> {
        let field = |(data_type, options): &(DataType, SortOptions)| {
            SortField::new_with_options(data_type.clone(), *options)
        };
        let converter = RowConverter::new(columns.iter().map(field).collect())
            .map_err(|error| Error::invalid(format!("rows cannot be ordered: {error}")))?;
        Ok(Self { converter })
    }

    pub(super) fn encode(&self, columns: &[ArrayRef]) -> Result<Encoded> {
        if columns.is_empty() {
            return Ok(Encoded(None));
        }
        let columns: Vec<ArrayRef> = columns.iter().map(canonical).collect();
        Ok(Encoded(Some(self.converter.convert_columns(&columns)?)))
    }
}

/// Encoded rows; of no columns they are empty.
pub(super) struct Encoded(Option<Rows>);

impl Encoded {
    pub(super) fn row(&self, row: usize) -> &[u8] {
        self.0.as_ref().map_or(&[], |rows| rows.row(row).data())
    }
}
