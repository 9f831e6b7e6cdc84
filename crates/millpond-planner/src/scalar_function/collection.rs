//! Functions of arrays and maps. Arrays count from 1.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, ListBuilder, StringBuilder, UInt32Array};
use arrow::buffer::OffsetBuffer;
use arrow::compute::{CastOptions, cast_with_options, take};
use arrow::datatypes::{DataType, Field};
use arrow::row::{RowConverter, SortField};
use datafusion::logical_expr::type_coercion::binary::comparison_coercion;
use millpond_core::{Error, Result};

use super::builtin::{Call, Definition};
use super::show::texts;
use crate::sql_type::sql_type;

/// The functions of this file.
pub(super) fn functions() -> Vec<Definition> {
    let f = Definition::new;
    vec![
        f("CARDINALITY(collection ANY) -> INT", |c| {
            let (values, mask) = c.values(0);
            let lengths = lengths(values)?;
            c.ints(|row| Ok(lengths(row & mask)))
        })
        .takes(|given| match given {
            [DataType::List(_) | DataType::Map(_, _)] => Some(given.to_vec()),
            _ => None,
        }),
        f("ELEMENT(array ARRAY)", element).gives(|types, _| item_type(&types[0])),
        f("ITEM(collection ANY, index ANY)", item)
            .takes(|given| match given {
                [DataType::List(_), index] if index.is_integer() || index.is_null() => {
                    Some(vec![given[0].clone(), DataType::Int64])
                }
                [DataType::Map(entries, _), index] => {
                    let key = map_types(entries.data_type())?.0;
                    comparison_coercion(&key, index)?;
                    Some(vec![given[0].clone(), key])
                }
                _ => None,
            })
            .gives(|types, _| item_type(&types[0])),
        f("SPLIT(text STRING, separator STRING)", |c| {
            let (text, separator) = (c.text(0)?, c.text(1)?);
            let mut lists = ListBuilder::new(StringBuilder::new());
            for row in 0..c.rows {
                let Some((text, separator)) = text.at(row).zip(separator.at(row)) else {
                    lists.append_null();
                    continue;
                };
                if separator.is_empty() {
                    text.chars().for_each(|letter| lists.values().append_value(letter.to_string()));
                } else {
                    text.split(separator).for_each(|part| lists.values().append_value(part));
                }
                lists.append(true);
            }
            Ok(Arc::new(lists.finish()))
        })
        .gives(|_, _| Ok(list_of(DataType::Utf8))),
        f("ARRAY_JOIN(array ARRAY, separator STRING [, null STRING]) -> STRING", |c| {
            let (values, mask) = c.values(0);
            let lists = values.as_list::<i32>();
            let items = texts(lists.values(), c.zone)?;
            let (separator, null) = (c.text(1)?, c.optional_text(2)?);
            c.texts(|row| {
                let range = range(lists, row & mask)?;
                let separator = separator.at(row)?;
                let null = null.map_or(Some(None), |null| null.at(row).map(Some))?;
                let shown = range.filter_map(|item| match items.is_null(item) {
                    true => null,
                    false => Some(items.value(item)),
                });
                Some(shown.collect::<Vec<_>>().join(separator))
            })
        })
        .alias("array_to_string"),
        f("ARRAY_CONTAINS(array ARRAY, item ANY) -> BOOLEAN", |c| {
            let places = places(c)?;
            c.booleans(|row| Ok(places[row].map(|place| place > 0)))
        })
        .takes(array_and_item)
        .alias("array_has"),
        f("ARRAY_POSITION(array ARRAY, item ANY) -> INT", |c| {
            let places = places(c)?;
            c.ints(|row| Ok(places[row]))
        })
        .takes(array_and_item),
        f("MAP_KEYS(map MAP)", |c| entries(c, 0)).gives(|types, _| {
            let key = map_parts(&types[0])?.0;
            Ok(list_of(key))
        }),
        f("MAP_VALUES(map MAP)", |c| entries(c, 1)).gives(|types, _| {
            let value = map_parts(&types[0])?.1;
            Ok(list_of(value))
        }),
    ]
}

fn list_of(item: DataType) -> DataType {
    DataType::List(Arc::new(Field::new("item", item, true)))
}

fn item_type(collection: &DataType) -> Result<DataType> {
    match collection {
        DataType::List(item) => Ok(item.data_type().clone()),
        other => Ok(map_parts(other)?.1),
    }
}

fn map_parts(data_type: &DataType) -> Result<(DataType, DataType)> {
    let parts = match data_type {
        DataType::Map(entries, _) => map_types(entries.data_type()),
        _ => None,
    };
    parts.ok_or_else(|| Error::internal(format!("{} is no map", sql_type(data_type))))
}

/// The types of keys and values of a map with such entries.
fn map_types(entries: &DataType) -> Option<(DataType, DataType)> {
    match entries {
        DataType::Struct(fields) if fields.len() == 2 => {
            Some((fields[0].data_type().clone(), fields[1].data_type().clone()))
        }
        _ => None,
    }
}

/// An array, and an item of the type of its items.
fn array_and_item(given: &[DataType]) -> Option<Vec<DataType>> {
    match given {
        [DataType::List(item), other] => {
            comparison_coercion(item.data_type(), other)?;
            Some(vec![given[0].clone(), item.data_type().clone()])
        }
        _ => None,
    }
}

/// How many items or entries each row has.
fn lengths(values: &ArrayRef) -> Result<impl Fn(usize) -> Option<i64>> {
    let offsets = match values.data_type() {
        DataType::List(_) => values.as_list::<i32>().offsets().clone(),
        DataType::Map(_, _) => values.as_map().offsets().clone(),
        other => return Err(Error::internal(format!("{} has no length", sql_type(other)))),
    };
    let nulls = values.logical_nulls();
    Ok(move |row: usize| {
        let valid = nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row));
        valid.then(|| i64::from(offsets[row + 1] - offsets[row]))
    })
}

/// Where the items of a list stand; `None` for NULL.
fn range(lists: &ListArray, row: usize) -> Option<std::ops::Range<usize>> {
    let offsets = lists.value_offsets();
    lists.is_valid(row).then(|| offsets[row] as usize..offsets[row + 1] as usize)
}

/// The only item of each array; NULL if there is none.
fn element(call: &Call<'_>) -> Result<ArrayRef> {
    let (values, mask) = call.values(0);
    let lists = values.as_list::<i32>();
    let place = |row: usize| -> Result<Option<u32>> {
        match range(lists, row & mask) {
            Some(range) if range.len() > 1 => {
                Err(Error::data(format!("ELEMENT of an array with {} items", range.len())))
            }
            Some(range) if range.len() == 1 => Ok(Some(range.start as u32)),
            Some(_) | None => Ok(None),
        }
    };
    let places = (0..call.rows).map(place).collect::<Result<UInt32Array>>()?;
    Ok(take(lists.values(), &places, None)?)
}

/// The item at an index, or the value of a key; NULL if there is none.
fn item(call: &Call<'_>) -> Result<ArrayRef> {
    let (values, mask) = call.values(0);
    if let Some(lists) = values.as_list_opt::<i32>() {
        let index = call.int(1)?;
        let place = |row: usize| {
            let (range, index) = (range(lists, row & mask)?, usize::try_from(index.at(row)?).ok()?);
            (1..=range.len()).contains(&index).then(|| (range.start + index - 1) as u32)
        };
        let places: UInt32Array = (0..call.rows).map(place).collect();
        return Ok(take(lists.values(), &places, None)?);
    }
    let maps = values.as_map();
    let (keys, wanted) = comparable(maps.keys(), call.values(1).0)?;
    let wanted_mask = call.values(1).1;
    let place = |row: usize| {
        let (map, wanted_place) = (row & mask, row & wanted_mask);
        if maps.is_null(map) || call.values(1).0.is_null(wanted_place) {
            return None;
        }
        let offsets = maps.value_offsets();
        let mut entries = offsets[map] as usize..offsets[map + 1] as usize;
        // Of equal keys the last one counts.
        entries.rfind(|entry| keys.row(*entry) == wanted.row(wanted_place)).map(|entry| entry as u32)
    };
    let places: UInt32Array = (0..call.rows).map(place).collect();
    Ok(take(maps.values(), &places, None)?)
}

/// Two columns of one type as rows that can be compared.
fn comparable(left: &ArrayRef, right: &ArrayRef) -> Result<(arrow::row::Rows, arrow::row::Rows)> {
    let right = match left.data_type() == right.data_type() {
        true => Arc::clone(right),
        false => {
            cast_with_options(right, left.data_type(), &CastOptions { safe: true, ..CastOptions::default() })?
        }
    };
    let converter = RowConverter::new(vec![SortField::new(left.data_type().clone())])?;
    Ok((converter.convert_columns(&[Arc::clone(left)])?, converter.convert_columns(&[right])?))
}

/// The place of the item in each array, from 1; 0 if it is not there.
fn places(call: &Call<'_>) -> Result<Vec<Option<i64>>> {
    let ((values, mask), (wanted, wanted_mask)) = (call.values(0), call.values(1));
    let lists = values.as_list::<i32>();
    let (items, wanted_rows) = comparable(lists.values(), wanted)?;
    let place = |row: usize| {
        let mut range = range(lists, row & mask)?;
        let start = range.start;
        let found = range.find(|item| items.row(*item) == wanted_rows.row(row & wanted_mask));
        Some(found.map_or(0, |item| (item - start + 1) as i64))
    };
    Ok((0..call.rows).map(place).collect())
}

/// The keys or values of each map as an array.
fn entries(call: &Call<'_>, part: usize) -> Result<ArrayRef> {
    let maps = call.column(0)?;
    let maps = maps.as_map();
    let DataType::List(field) = call.result else { return Err(Error::internal("entries are an array")) };
    let values = Arc::clone(maps.entries().column(part));
    let offsets = OffsetBuffer::new(maps.offsets().inner().clone());
    Ok(Arc::new(ListArray::try_new(Arc::clone(field), offsets, values, maps.nulls().cloned())?))
}
