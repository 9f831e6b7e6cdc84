//! Results that are read from a rows table: the rows of a group, in their order.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, StringBuilder, UInt32Array, new_empty_array};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::{concat, take};
use arrow::datatypes::DataType;
use arrow::row::{RowConverter, SortField};
use millpond_core::{Error, Result};
use millpond_state::key_index::canonical;

use super::function::AggregateFunction;
use super::set::BoundCall;
use super::side::SideRef;

impl BoundCall {
    /// The results of the groups at `slots`; rows with more than one value for SINGLE_VALUE are told
    /// by `several`, as an error about that group.
    pub(super) fn of_rows(
        &self,
        side: SideRef<'_>,
        slots: &[u32],
        several: impl Fn(usize) -> Error,
    ) -> Result<ArrayRef> {
        let index = side.index.ok_or_else(|| Error::internal("a table of rows has no order"))?;
        match &self.call.function {
            AggregateFunction::FirstValue => {
                self.pick(side, slots.iter().map(|group| index.of(*group).next()))
            }
            AggregateFunction::LastValue => {
                self.pick(side, slots.iter().map(|group| index.of(*group).next_back()))
            }
            AggregateFunction::SingleValue => {
                let mut places = Vec::with_capacity(slots.len());
                for (row, group) in slots.iter().enumerate() {
                    let mut rows = index.of(*group);
                    places.push(rows.next());
                    if rows.next().is_some() {
                        return Err(several(row));
                    }
                }
                self.pick(side, places.into_iter())
            }
            _ => {
                let groups = slots.iter().map(|group| index.of(*group).collect::<Vec<u32>>());
                self.of_lists(side, groups.collect())
            }
        }
    }

    fn pick(&self, side: SideRef<'_>, places: impl Iterator<Item = Option<u32>>) -> Result<ArrayRef> {
        let (mut slots, mut rows) = (Vec::new(), Vec::new());
        for place in places {
            rows.push(place.map(|slot| {
                slots.push(slot);
                (slots.len() - 1) as u32
            }));
        }
        Ok(take(&side.rows.columns()[0].gather(&slots)?, &UInt32Array::from(rows), None)?)
    }

    fn of_lists(&self, side: SideRef<'_>, mut groups: Vec<Vec<u32>>) -> Result<ArrayRef> {
        if self.call.distinct {
            groups =
                groups.into_iter().map(|group| self.distinct_rows(side, group)).collect::<Result<_>>()?;
        }
        match &self.call.function {
            AggregateFunction::ArrayAgg => self.arrays(side, &groups),
            AggregateFunction::ListAgg(separator) => self.texts(side, &groups, separator),
            AggregateFunction::Custom(function) => {
                let result = |group: &Vec<u32>| {
                    let columns = self.arguments(side, group)?;
                    function.result(&columns, group.len(), !self.call.keeps_nulls())
                };
                let results = groups.iter().map(result).collect::<Result<Vec<_>>>()?;
                let results: Vec<&dyn Array> = results.iter().map(AsRef::as_ref).collect();
                match results.is_empty() {
                    true => Ok(new_empty_array(&self.call.output_type)),
                    false => Ok(concat(&results)?),
                }
            }
            other => Err(Error::internal(format!("{other} is not a function of rows"))),
        }
    }

    /// The first row of each value. Panes that were merged may each have one.
    fn distinct_rows(&self, side: SideRef<'_>, group: Vec<u32>) -> Result<Vec<u32>> {
        let columns: Vec<ArrayRef> = self.arguments(side, &group)?.iter().map(canonical).collect();
        let fields = columns.iter().map(|column| SortField::new(column.data_type().clone())).collect();
        let encoded = RowConverter::new(fields)?.convert_columns(&columns)?;
        let mut seen = HashSet::new();
        let first = |(row, slot): (usize, u32)| seen.insert(encoded.row(row)).then_some(slot);
        Ok(group.into_iter().enumerate().filter_map(first).collect())
    }

    fn arguments(&self, side: SideRef<'_>, slots: &[u32]) -> Result<Vec<ArrayRef>> {
        let columns = side.rows.columns().iter().take(self.call.arguments.len());
        columns.map(|column| column.gather(slots)).collect()
    }

    /// Lists of the rows; NULL for a group without any.
    fn arrays(&self, side: SideRef<'_>, groups: &[Vec<u32>]) -> Result<ArrayRef> {
        let DataType::List(field) = &self.call.output_type else {
            return Err(Error::internal("ARRAY_AGG gives an ARRAY"));
        };
        let values = side.rows.columns()[0].gather(&groups.concat())?;
        let nulls: NullBuffer = groups.iter().map(|group| !group.is_empty()).collect();
        let offsets = OffsetBuffer::from_lengths(groups.iter().map(Vec::len));
        Ok(Arc::new(ListArray::try_new(field.clone(), offsets, values, Some(nulls))?))
    }

    /// The rows' texts with a separator between them; NULL for a group without any.
    fn texts(&self, side: SideRef<'_>, groups: &[Vec<u32>], separator: &str) -> Result<ArrayRef> {
        let texts = side.rows.columns()[0].gather(&groups.concat())?;
        let texts = arrow::compute::cast(&texts, &DataType::Utf8)?;
        let texts = texts.as_string::<i32>();
        let mut results = StringBuilder::new();
        let mut row = 0;
        for group in groups {
            if group.is_empty() {
                results.append_null();
                continue;
            }
            let mut text = String::new();
            let mut first = true;
            for row in row..row + group.len() {
                // A NULL that is respected is left out all the same, as it has no text.
                if texts.is_valid(row) {
                    if !std::mem::replace(&mut first, false) {
                        text.push_str(separator);
                    }
                    text.push_str(texts.value(row));
                }
            }
            row += group.len();
            results.append_value(text);
        }
        Ok(Arc::new(results.finish()))
    }
}
