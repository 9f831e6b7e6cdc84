//! JSON functions. Their clauses are texts by the time they get here: the parser writes
//! `JSON_VALUE(j, p RETURNING INT DEFAULT 0 ON EMPTY)` as
//! `JSON_VALUE(j, p, 'INT', 'DEFAULT', 0, 'NULL', NULL)`.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanBuilder, Float64Builder, Int32Builder, ListBuilder, StringArray,
    StringBuilder,
};
use arrow::datatypes::{DataType, Field};
use chrono_tz::Tz;
use datafusion::common::ScalarValue;
use millpond_core::{Error, Result};

use super::builtin::{Call, Definition, Values};
use super::json_path::{Found, Path};
use super::json_value::{Json, write_text};
use super::show::{shown, texts};
use crate::sql_type::sql_type;

/// The functions of this file.
pub(super) fn functions() -> Vec<Definition> {
    let f = Definition::new;
    vec![
        f("JSON_VALUE(json STRING, path STRING [, ANY, ANY, ANY, ANY, ANY])", json_value)
            .takes(|given| texts_then_any(given, 7))
            .gives(|_, constants| Ok(returning(constants.get(2)))),
        f("JSON_QUERY(json STRING, path STRING [, ANY, ANY, ANY, ANY])", json_query)
            .takes(|given| texts_then_any(given, 6))
            .gives(|_, constants| Ok(returning(constants.get(2)))),
        f("JSON_EXISTS(json STRING, path STRING [, error STRING]) -> BOOLEAN", |c| {
            let (json, paths, on_error) = (c.text(0)?, Paths::new(c)?, c.optional_text(2)?);
            c.booleans(|row| {
                let Some((json, path)) = json.at(row).zip(paths.at(row)?) else { return Ok(None) };
                match Json::parse(json).map(|json| path.find(&json)) {
                    Some(Found::One(found)) => Ok(Some(found != Json::Null)),
                    Some(Found::Nothing) => Ok(Some(false)),
                    Some(Found::Missing) | None => match on_error.and_then(|on_error| on_error.at(row)) {
                        Some("TRUE") => Ok(Some(true)),
                        Some("UNKNOWN") => Ok(None),
                        Some("ERROR") => Err(unreadable("JSON_EXISTS", json)),
                        Some(_) | None => Ok(Some(false)),
                    },
                }
            })
        }),
        f("IS_JSON(text STRING, sort STRING) -> BOOLEAN", |c| {
            let (text, sort) = (c.text(0)?, c.text(1)?);
            c.booleans(|row| {
                let json = text.at(row).and_then(Json::parse);
                Ok(Some(json.is_some_and(|json| match sort.at(row) {
                    Some("SCALAR") => json.is_scalar(),
                    Some("ARRAY") => matches!(json, Json::Array(_)),
                    Some("OBJECT") => matches!(json, Json::Object(_)),
                    Some(_) | None => true,
                })))
            })
        }),
        f("JSON_QUOTE(text STRING) -> STRING", |c| {
            let text = c.text(0)?;
            c.texts(|row| Some(Json::Text(text.at(row)?.to_owned()).to_text()))
        }),
        f("JSON_UNQUOTE(text STRING) -> STRING", |c| {
            let text = c.text(0)?;
            c.texts(|row| {
                let text = text.at(row)?;
                Some(match Json::parse(text) {
                    Some(Json::Text(inner)) => inner,
                    _ => text.to_owned(),
                })
            })
        }),
        f("JSON_LENGTH(json STRING [, path STRING]) -> INT", |c| {
            let (json, paths) = (c.text(0)?, if c.len() > 1 { Some(Paths::new(c)?) } else { None });
            c.ints(|row| {
                let Some(json) = json.at(row).and_then(Json::parse) else { return Ok(None) };
                let found = match &paths {
                    None => Some(json),
                    Some(paths) => match paths.at(row)?.map(|path| path.find(&json)) {
                        Some(Found::One(found)) => Some(found),
                        _ => None,
                    },
                };
                Ok(found.map(|found| match found {
                    Json::Array(items) => items.len() as i64,
                    Json::Object(members) => members.len() as i64,
                    _ => 1,
                }))
            })
        }),
        f("JSON_STRING(value ANY) -> STRING", |c| {
            let (values, mask) = c.values(0);
            let jsons = jsons(values, false, c.zone)?;
            c.texts(|row| {
                let place = row & mask;
                (!is_missing(values, place)).then(|| &jsons[place])
            })
        }),
        f("JSON_OBJECT(on_null STRING, member ANY, ...) -> STRING", json_object)
            .takes(|given| (given.len() % 2 == 1).then(|| given.to_vec())),
        f("JSON_ARRAY(on_null STRING, item ANY, ...) -> STRING", json_array)
            .takes(|given| (!given.is_empty()).then(|| given.to_vec())),
    ]
}

/// JSON and path are texts.
fn texts_then_any(given: &[DataType], most: usize) -> Option<Vec<DataType>> {
    let text = |data_type: &DataType| data_type.is_null() || matches!(data_type, DataType::Utf8);
    let fits = (2..=most).contains(&given.len()) && given[..2].iter().all(text);
    fits.then(|| [DataType::Utf8, DataType::Utf8].iter().chain(&given[2..]).cloned().collect())
}

/// The type that RETURNING names.
fn returning(name: Option<&Option<ScalarValue>>) -> DataType {
    let name = match name {
        Some(Some(ScalarValue::Utf8(Some(name)))) => name.to_uppercase(),
        _ => return DataType::Utf8,
    };
    match name.as_str() {
        "BOOLEAN" => DataType::Boolean,
        "INT" | "INTEGER" => DataType::Int32,
        "DOUBLE" => DataType::Float64,
        name if name.starts_with("ARRAY") => {
            DataType::List(Arc::new(Field::new("item", DataType::Utf8, true)))
        }
        _ => DataType::Utf8,
    }
}

fn unreadable(function: &str, json: &str) -> Error {
    let shown: String = json.chars().take(80).collect();
    Error::data(format!("{function}: nothing to be found in '{shown}'"))
        .with_hint("NULL ON ERROR and NULL ON EMPTY give NULL instead")
}

/// The paths of argument 1; the last one is kept, since mostly it is the same for all rows.
struct Paths<'a> {
    texts: Values<'a, StringArray>,
    last: RefCell<Option<(String, Rc<Path>)>>,
}

impl<'a> Paths<'a> {
    fn new(call: &'a Call<'_>) -> Result<Self> {
        Ok(Self { texts: call.text(1)?, last: RefCell::default() })
    }

    fn at(&self, row: usize) -> Result<Option<Rc<Path>>> {
        let Some(text) = self.texts.at(row) else { return Ok(None) };
        if let Some((last, path)) = self.last.borrow().as_ref()
            && last == text
        {
            return Ok(Some(Rc::clone(path)));
        }
        let path = Rc::new(Path::parse(text)?);
        *self.last.borrow_mut() = Some((text.to_owned(), Rc::clone(&path)));
        Ok(Some(path))
    }
}

/// What ON EMPTY or ON ERROR says.
struct Behaviour<'a> {
    what: Option<&'a str>,
    default: Option<super::show::Shown>,
}

impl<'a> Behaviour<'a> {
    fn new(call: &'a Call<'_>, argument: usize) -> Result<Self> {
        if argument >= call.len() {
            return Ok(Self { what: None, default: None });
        }
        let what = call.text(argument)?.at(0);
        let default = (what == Some("DEFAULT")).then(|| shown(call, argument + 1)).transpose()?;
        Ok(Self { what, default })
    }

    fn value(&self, row: usize, failure: impl Fn() -> Error) -> Result<Option<String>> {
        match (self.what, &self.default) {
            (Some("ERROR"), _) => Err(failure()),
            (Some("EMPTY ARRAY"), _) => Ok(Some("[]".into())),
            (Some("EMPTY OBJECT"), _) => Ok(Some("{}".into())),
            (_, Some(default)) => Ok(default.at(row).map(str::to_owned)),
            _ => Ok(None),
        }
    }
}

/// `JSON_VALUE(json, path, returning, on empty, default, on error, default)`.
fn json_value(c: &Call<'_>) -> Result<ArrayRef> {
    let (json, paths) = (c.text(0)?, Paths::new(c)?);
    let (on_empty, on_error) = (Behaviour::new(c, 3)?, Behaviour::new(c, 5)?);
    let value = |row: usize| -> Result<Option<String>> {
        let Some((text, path)) = json.at(row).zip(paths.at(row)?) else { return Ok(None) };
        let failure = || unreadable("JSON_VALUE", text);
        match Json::parse(text).map(|json| path.find(&json)) {
            None | Some(Found::Missing) => on_error.value(row, failure),
            Some(Found::Nothing | Found::One(Json::Null)) => on_empty.value(row, failure),
            Some(Found::One(found)) if !found.is_scalar() => match path.strict {
                true => on_error.value(row, failure),
                false => on_empty.value(row, failure),
            },
            Some(Found::One(found)) => {
                let text = match found {
                    Json::Text(text) => text,
                    other => other.to_text(),
                };
                match fits(&text, c.result) {
                    true => Ok(Some(text)),
                    false => on_error.value(row, failure),
                }
            }
        }
    };
    typed(c, value)
}

/// Whether a value is one of the type.
fn fits(text: &str, data_type: &DataType) -> bool {
    match data_type {
        DataType::Boolean => text.parse::<bool>().is_ok(),
        DataType::Int32 => text.parse::<i32>().is_ok(),
        DataType::Float64 => text.parse::<f64>().is_ok(),
        _ => true,
    }
}

fn typed(c: &Call<'_>, value: impl Fn(usize) -> Result<Option<String>>) -> Result<ArrayRef> {
    macro_rules! collected {
        ($builder:ty) => {{
            let mut values = <$builder>::with_capacity(c.rows);
            for row in 0..c.rows {
                values.append_option(value(row)?.and_then(|text| text.to_lowercase().parse().ok()));
            }
            Ok(Arc::new(values.finish()))
        }};
    }
    match c.result {
        DataType::Boolean => collected!(BooleanBuilder),
        DataType::Int32 => collected!(Int32Builder),
        DataType::Float64 => collected!(Float64Builder),
        _ => c.try_texts(value),
    }
}

/// `JSON_QUERY(json, path, returning, wrapper, on empty, on error)`.
fn json_query(c: &Call<'_>) -> Result<ArrayRef> {
    let (json, paths) = (c.text(0)?, Paths::new(c)?);
    let wrapper = c.optional_text(3)?.and_then(|wrapper| wrapper.at(0));
    let (on_empty, on_error) = (Behaviour::new(c, 4)?, Behaviour::new(c, 5)?);
    let value = |row: usize| -> Result<Option<String>> {
        let Some((text, path)) = json.at(row).zip(paths.at(row)?) else { return Ok(None) };
        let failure = || unreadable("JSON_QUERY", text);
        let found = match Json::parse(text).map(|json| path.find(&json)) {
            None | Some(Found::Missing) => return on_error.value(row, failure),
            Some(Found::Nothing) => return on_empty.value(row, failure),
            Some(Found::One(found)) => found,
        };
        let wrapped = match wrapper {
            Some("UNCONDITIONAL") => Json::Array(vec![found]),
            Some("CONDITIONAL") if !matches!(found, Json::Array(_)) => Json::Array(vec![found]),
            _ => found,
        };
        match wrapped.is_scalar() {
            true if path.strict && wrapped != Json::Null => on_error.value(row, failure),
            true => on_empty.value(row, failure),
            false => Ok(Some(wrapped.to_text())),
        }
    };
    if !matches!(c.result, DataType::List(_)) {
        return c.try_texts(value);
    }
    let mut lists = ListBuilder::new(StringBuilder::new());
    for row in 0..c.rows {
        match value(row)?.as_deref().and_then(Json::parse) {
            Some(Json::Array(items)) => {
                for item in items {
                    lists.values().append_option(match item {
                        Json::Null => None,
                        Json::Text(text) => Some(text),
                        other => Some(other.to_text()),
                    });
                }
                lists.append(true);
            }
            _ => lists.append_null(),
        }
    }
    Ok(Arc::new(lists.finish()))
}

/// A value as JSON, as it is, and by which its row is found.
type Member = (Vec<String>, ArrayRef, usize);

/// What `on_null` says of an argument: after `NULL:` or `ABSENT:` one letter per argument, `r` for
/// JSON that is put in as it is.
fn members(c: &Call<'_>, step: usize) -> Result<(bool, Vec<Member>)> {
    let on_null = c.text(0)?.at(0).unwrap_or("NULL:").to_owned();
    let (on_null, sorts) = on_null.split_once(':').unwrap_or((&on_null, ""));
    let mut members = Vec::new();
    for (argument, sort) in (step..c.len()).step_by(step).zip(sorts.chars().chain(std::iter::repeat('v'))) {
        let (values, mask) = c.values(argument);
        members.push((jsons(values, sort == 'r', c.zone)?, Arc::clone(values), mask));
    }
    Ok((on_null == "ABSENT", members))
}

/// `JSON_OBJECT('NULL:vr', key, value, …)`.
fn json_object(c: &Call<'_>) -> Result<ArrayRef> {
    let (absent, values) = members(c, 2)?;
    let keys = (1..c.len()).step_by(2).map(|argument| shown(c, argument)).collect::<Result<Vec<_>>>()?;
    c.try_texts(|row| {
        let mut object = String::from("{");
        for (key, (jsons, values, mask)) in keys.iter().zip(&values) {
            let is_null = is_missing(values, row & mask);
            if is_null && absent {
                continue;
            }
            if object.len() > 1 {
                object.push(',');
            }
            let key = key.at(row).ok_or_else(|| Error::data("a key of JSON_OBJECT is NULL"))?;
            write_text(key, &mut object);
            object.push(':');
            object.push_str(if is_null { "null" } else { &jsons[row & mask] });
        }
        object.push('}');
        Ok(Some(object))
    })
}

/// `JSON_ARRAY('ABSENT:vr', value, …)`.
fn json_array(c: &Call<'_>) -> Result<ArrayRef> {
    let (absent, values) = members(c, 1)?;
    c.texts(|row| {
        let mut array = String::from("[");
        for (jsons, values, mask) in &values {
            let is_null = is_missing(values, row & mask);
            if is_null && absent {
                continue;
            }
            if array.len() > 1 {
                array.push(',');
            }
            array.push_str(if is_null { "null" } else { &jsons[row & mask] });
        }
        array.push(']');
        Some(array)
    })
}

/// Whether a value is NULL; all of those without a type are.
fn is_missing(values: &ArrayRef, place: usize) -> bool {
    values.data_type().is_null() || values.is_null(place)
}

/// Each value as JSON; `raw`: texts are JSON already.
fn jsons(values: &ArrayRef, raw: bool, zone: Option<Tz>) -> Result<Vec<String>> {
    let nested = |values: &ArrayRef| jsons(values, false, zone);
    let quoted = |texts: StringArray| {
        texts
            .iter()
            .map(|text| Json::Text(text.unwrap_or_default().to_owned()).to_text())
            .collect::<Vec<String>>()
    };
    Ok(match values.data_type() {
        DataType::Null => vec!["null".to_owned(); values.len()],
        DataType::Utf8 if raw => {
            values.as_string::<i32>().iter().map(|text| text.unwrap_or("null").to_owned()).collect()
        }
        DataType::Boolean => {
            values.as_boolean().iter().map(|truth| (truth == Some(true)).to_string()).collect()
        }
        data_type if data_type.is_numeric() => {
            let number = |text: Option<&str>| match text {
                Some("NaN" | "Infinity" | "-Infinity") | None => "null".to_owned(),
                Some(text) => text.to_owned(),
            };
            texts(values, zone)?.iter().map(number).collect()
        }
        DataType::List(_) => {
            let lists = values.as_list::<i32>();
            let (items, offsets) = (nested(lists.values())?, lists.value_offsets());
            let item =
                |place: usize| if lists.values().is_null(place) { "null" } else { items[place].as_str() };
            let list = |row: usize| {
                let items: Vec<&str> = (offsets[row] as usize..offsets[row + 1] as usize).map(item).collect();
                format!("[{}]", items.join(","))
            };
            (0..values.len()).map(list).collect()
        }
        DataType::Struct(fields) => {
            let columns = values.as_struct().columns();
            let members = columns.iter().map(nested).collect::<Result<Vec<_>>>()?;
            let object = |row: usize| {
                let member = |((field, column), jsons): ((&Arc<Field>, &ArrayRef), &Vec<String>)| {
                    let mut name = String::new();
                    write_text(field.name(), &mut name);
                    format!("{name}:{}", if column.is_null(row) { "null" } else { &jsons[row] })
                };
                let members: Vec<String> = fields.iter().zip(columns).zip(&members).map(member).collect();
                format!("{{{}}}", members.join(","))
            };
            (0..values.len()).map(object).collect()
        }
        DataType::Map(_, _) => {
            let maps = values.as_map();
            let (keys, items) = (texts(maps.keys(), zone)?, nested(maps.values())?);
            let entry = |place: usize| {
                let mut name = String::new();
                write_text(keys.value(place), &mut name);
                format!("{name}:{}", if maps.values().is_null(place) { "null" } else { &items[place] })
            };
            let offsets = maps.value_offsets();
            let map = |row: usize| {
                let entries: Vec<String> =
                    (offsets[row] as usize..offsets[row + 1] as usize).map(entry).collect();
                format!("{{{}}}", entries.join(","))
            };
            (0..values.len()).map(map).collect()
        }
        other if other.is_temporal() || matches!(other, DataType::Utf8 | DataType::Binary) => {
            quoted(texts(values, zone)?)
        }
        other => return Err(Error::invalid(format!("{} has no JSON", sql_type(other)))),
    })
}
