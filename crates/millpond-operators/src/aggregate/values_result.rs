//! Results that are read from a values table: how often each value occurs, ascending.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Float64Array, Int32Array, Int64Array, ListArray, MapArray, StructArray,
    UInt32Array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::{cast, take};
use arrow::datatypes::{DataType, Decimal128Type, Field, Float64Type, Int64Type};
use millpond_core::{Error, Result};

use super::function::{AggregateFunction, FRACTION_PARTS, Percentile};
use super::set::BoundCall;
use super::side::SideRef;

/// The values of a group that count: slots in the table, each with its number of rows.
type Counted = Vec<(u32, i64)>;

impl BoundCall {
    /// The results of the groups at `slots`.
    pub(super) fn of_values(&self, side: SideRef<'_>, slots: &[u32]) -> Result<ArrayRef> {
        let index = side.index.ok_or_else(|| Error::internal("a table in order of values has no order"))?;
        let counts = side.rows.columns()[0].i64s();
        let counts_here = |slot: &u32| counts[*slot as usize] > 0;
        let counted = |group: u32| -> Counted {
            let weight = |slot: u32| if self.call.distinct { 1 } else { counts[slot as usize] };
            index.of(group).filter(counts_here).map(|slot| (slot, weight(slot))).collect()
        };
        match &self.call.function {
            AggregateFunction::Min => {
                pick(side, slots.iter().map(|group| index.of(*group).find(counts_here)))
            }
            AggregateFunction::Max => {
                pick(side, slots.iter().map(|group| index.of(*group).rev().find(counts_here)))
            }
            AggregateFunction::Mode => pick(side, slots.iter().map(|group| most_frequent(counted(*group)))),
            AggregateFunction::Collect => {
                collect(side, slots.iter().map(|group| counted(*group)), &self.call.output_type)
            }
            AggregateFunction::Percentile(percentile) => {
                let positions = slots.iter().flat_map(|group| percentile.positions(&counted(*group)));
                percentile.results(side, positions.collect(), slots.len())
            }
            AggregateFunction::BitAnd => {
                bits(side, slots.iter().map(|group| counted(*group)), true, &self.call.output_type)
            }
            AggregateFunction::BitOr => {
                bits(side, slots.iter().map(|group| counted(*group)), false, &self.call.output_type)
            }
            other => Err(Error::internal(format!("{other} is not a function of values"))),
        }
    }
}

/// The values at some places of the table; NULL where there is none.
fn pick(side: SideRef<'_>, places: impl Iterator<Item = Option<u32>>) -> Result<ArrayRef> {
    let (mut slots, mut rows) = (Vec::new(), Vec::new());
    for place in places {
        rows.push(place.map(|slot| {
            slots.push(slot);
            (slots.len() - 1) as u32
        }));
    }
    Ok(take(&values(side, &slots)?, &UInt32Array::from(rows), None)?)
}

fn values(side: SideRef<'_>, slots: &[u32]) -> Result<ArrayRef> {
    let mut identity = side.rows.keys(slots)?;
    identity.pop().ok_or_else(|| Error::internal("a values table has no value"))
}

/// Of several values that occur most often the least.
fn most_frequent(counted: Counted) -> Option<u32> {
    let most = counted.iter().map(|(_, count)| *count).max()?;
    counted.into_iter().find(|(_, count)| *count == most).map(|(slot, _)| slot)
}

/// A MAP from value to its number of rows; NULL for a group without a value.
fn collect(
    side: SideRef<'_>,
    groups: impl Iterator<Item = Counted>,
    output_type: &DataType,
) -> Result<ArrayRef> {
    let DataType::Map(entries, _) = output_type else {
        return Err(Error::internal("COLLECT gives a MAP"));
    };
    let DataType::Struct(fields) = entries.data_type() else {
        return Err(Error::internal("a MAP has entries"));
    };
    let (mut slots, mut counts, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
    for group in groups {
        lengths.push(group.len());
        for (slot, count) in group {
            slots.push(slot);
            counts.push(i32::try_from(count).unwrap_or(i32::MAX));
        }
    }
    let nulls: NullBuffer = lengths.iter().map(|length| *length > 0).collect();
    let columns: Vec<ArrayRef> = vec![values(side, &slots)?, Arc::new(Int32Array::from(counts))];
    let items = StructArray::try_new(fields.clone(), columns, None)?;
    let offsets = OffsetBuffer::from_lengths(lengths);
    Ok(Arc::new(MapArray::try_new(entries.clone(), offsets, items, Some(nulls), false)?))
}

fn bits(
    side: SideRef<'_>,
    groups: impl Iterator<Item = Counted>,
    all: bool,
    output_type: &DataType,
) -> Result<ArrayRef> {
    let combined = groups.map(|group| -> Result<Option<i64>> {
        let slots: Vec<u32> = group.into_iter().map(|(slot, _)| slot).collect();
        let values = cast(&values(side, &slots)?, &DataType::Int64)?;
        let values = values.as_primitive::<Int64Type>().values();
        Ok(values.iter().copied().reduce(|a, b| if all { a & b } else { a | b }))
    });
    let combined: Int64Array = combined.collect::<Result<Vec<_>>>()?.into();
    Ok(cast(&combined, output_type)?)
}

/// Where a percentile lies: between two places of the table, this far from the first.
type Position = Option<(u32, u32, f64)>;

impl Percentile {
    /// One position per fraction.
    fn positions(&self, counted: &Counted) -> Vec<Position> {
        let rows: i64 = counted.iter().map(|(_, count)| count).sum();
        // Places by their number of rows so far.
        let mut ends = Vec::with_capacity(counted.len());
        let mut end = 0;
        for (slot, count) in counted {
            end += count;
            ends.push((end, *slot));
        }
        let at = |row: i64| ends[ends.partition_point(|(end, _)| *end <= row)].1;
        let position = |parts: &u64| {
            if rows == 0 {
                return None;
            }
            let fraction = *parts as f64 / FRACTION_PARTS;
            let forward = |row: i64| if self.descending { rows - 1 - row } else { row };
            if self.discrete {
                let row = ((fraction * rows as f64).ceil() as i64 - 1).clamp(0, rows - 1);
                let slot = at(forward(row));
                return Some((slot, slot, 0.0));
            }
            let exact = fraction * (rows - 1) as f64;
            let row = (exact.floor() as i64).clamp(0, rows - 1);
            let next = (row + 1).min(rows - 1);
            Some((at(forward(row)), at(forward(next)), exact - row as f64))
        };
        self.fractions.iter().map(position).collect()
    }

    fn results(&self, side: SideRef<'_>, positions: Vec<Position>, groups: usize) -> Result<ArrayRef> {
        let values = match self.discrete {
            true => pick(side, positions.iter().map(|position| position.map(|(slot, _, _)| slot)))?,
            false => interpolated(side, &positions)?,
        };
        if !self.is_list {
            return Ok(values);
        }
        let each = self.fractions.len();
        let nulls = match each {
            0 => NullBuffer::new_null(groups),
            _ => positions.chunks(each).map(|chunk| chunk[0].is_some()).collect(),
        };
        let field = Arc::new(Field::new_list_field(values.data_type().clone(), true));
        let offsets = OffsetBuffer::from_repeated_length(each, groups);
        Ok(Arc::new(ListArray::try_new(field, offsets, values, Some(nulls))?))
    }
}

fn interpolated(side: SideRef<'_>, positions: &[Position]) -> Result<ArrayRef> {
    let floats = |of: fn(&(u32, u32, f64)) -> u32| -> Result<Float64Array> {
        let picked = pick(side, positions.iter().map(|position| position.as_ref().map(of)))?;
        Ok(match picked.data_type() {
            // Digits first, then the point: the nearest float.
            DataType::Decimal128(_, scale) => {
                let unit = 10f64.powi(i32::from(*scale));
                picked.as_primitive::<Decimal128Type>().unary(|value| value as f64 / unit)
            }
            _ => cast(&picked, &DataType::Float64)?.as_primitive::<Float64Type>().clone(),
        })
    };
    let (low, high) = (floats(|position| position.0)?, floats(|position| position.1)?);
    let value = |(row, position): (usize, &Position)| {
        let (_, _, way) = (*position)?;
        let (low, high) = (low.value(row), high.value(row));
        // Also for infinities, whose difference would be NaN.
        Some(if way == 0.0 || low == high { low } else { low + (high - low) * way })
    };
    Ok(Arc::new(positions.iter().enumerate().map(value).collect::<Float64Array>()))
}
