//! Which folder a row belongs to: `k=v/…` from the values of the partition columns.

use std::collections::HashMap;

use arrow::array::{ArrayRef, RecordBatch, UInt32Array};
use arrow::datatypes::{Schema, SchemaRef};
use millpond_core::{ChangelogBatch, Error, Result};

use crate::format::text::{ColumnText, TextFormat};

/// The folder name of NULL, as in Hive and Flink.
const NULL_PARTITION: &str = "__HIVE_DEFAULT_PARTITION__";

/// Bytes of one folder name on every common file system.
const NAME_BYTES_MAX: usize = 255;

/// The columns of a table, parted into those of the path and those of the file.
#[derive(Debug)]
pub(super) struct Partitioning {
    /// Index and encoded name (with `=`) of each partition column, in the order of the path.
    keys: Vec<(usize, String)>,
    file_columns: Vec<usize>,
    file_schema: SchemaRef,
}

impl Partitioning {
    pub(super) fn new(table: &str, schema: &SchemaRef, keys: &[String]) -> Result<Self> {
        let keys = keys.iter().map(|key| key_column(table, schema, key)).collect::<Result<Vec<_>>>()?;
        let in_path = |column: &usize| keys.iter().any(|(key, _)| key == column);
        let file_columns: Vec<usize> = (0..schema.fields().len()).filter(|column| !in_path(column)).collect();
        if file_columns.is_empty() {
            return Err(Error::invalid(format!(
                "table {table:?} has no column besides its partition columns"
            )));
        }
        let fields: Vec<_> = file_columns.iter().map(|column| schema.fields()[*column].clone()).collect();
        Ok(Self { keys, file_columns, file_schema: SchemaRef::new(Schema::new(fields)) })
    }

    /// The columns that files have.
    pub(super) fn file_schema(&self) -> &Schema {
        &self.file_schema
    }

    /// The rows of each folder, in their order, without the columns of the path.
    pub(super) fn split(&self, batch: &ChangelogBatch) -> Result<Vec<(String, ChangelogBatch)>> {
        let rows = &batch.rows;
        let columns: Vec<ArrayRef> =
            self.file_columns.iter().map(|column| rows.column(*column).clone()).collect();
        let in_file = batch.replace_rows(RecordBatch::try_new(self.file_schema.clone(), columns)?);
        if self.keys.is_empty() {
            return Ok(vec![(String::new(), in_file)]);
        }
        let folders = self.folders(rows)?;
        if let [(_, _)] = folders[..] {
            return Ok(folders.into_iter().map(|(folder, _)| (folder, in_file.clone())).collect());
        }
        let rows_of =
            |(folder, indices): (String, Vec<u32>)| Ok((folder, in_file.take(&UInt32Array::from(indices))?));
        folders.into_iter().map(rows_of).collect()
    }

    /// The rows of each folder, folders in the order of their first row.
    fn folders(&self, rows: &RecordBatch) -> Result<Vec<(String, Vec<u32>)>> {
        let texts = self.keys.iter().map(|(column, _)| TextFormat::file().formatter(rows.column(*column)));
        let texts = texts.collect::<Result<Vec<_>>>()?;
        let mut folders: Vec<(String, Vec<u32>)> = Vec::new();
        let mut indices: HashMap<String, usize> = HashMap::new();
        let (mut folder, mut value) = (String::new(), String::new());
        for row in 0..rows.num_rows() {
            self.write_folder(&texts, row, &mut folder, &mut value)?;
            let index = match indices.get(&folder) {
                Some(index) => *index,
                None => {
                    indices.insert(folder.clone(), folders.len());
                    folders.push((folder.clone(), Vec::new()));
                    folders.len() - 1
                }
            };
            folders[index].1.push(row as u32);
        }
        Ok(folders)
    }

    fn write_folder(
        &self,
        texts: &[ColumnText],
        row: usize,
        folder: &mut String,
        value: &mut String,
    ) -> Result<()> {
        folder.clear();
        for ((_, name), text) in self.keys.iter().zip(texts) {
            if !folder.is_empty() {
                folder.push('/');
            }
            let start = folder.len();
            folder.push_str(name);
            if text.is_null(row) {
                folder.push_str(NULL_PARTITION);
                continue;
            }
            value.clear();
            text.write(row, value);
            push_encoded(value, folder);
            let length = folder.len() - start;
            if length > NAME_BYTES_MAX {
                let message = format!(
                    "the partition folder {:?} would have a name of {length} bytes",
                    &folder[start..]
                );
                return Err(Error::data(message)
                    .with_hint(format!("a folder's name has at most {NAME_BYTES_MAX} bytes")));
            }
        }
        Ok(())
    }
}

fn key_column(table: &str, schema: &SchemaRef, key: &str) -> Result<(usize, String)> {
    let Some((index, field)) = schema.column_with_name(key) else {
        return Err(Error::invalid(format!("table {table:?} has no column {key:?} to partition by")));
    };
    if field.data_type().is_nested() {
        let data_type = field.data_type();
        return Err(Error::invalid(format!(
            "column {key:?} of table {table:?} is {data_type} and cannot name a folder"
        )));
    }
    let mut name = String::new();
    push_encoded(key, &mut name);
    name.push('=');
    Ok((index, name))
}

/// Percent-encodes what a path or a reader of `k=v` could misread (the characters that Hive
/// encodes), and the first character of a text that would read as NULL.
fn push_encoded(text: &str, out: &mut String) {
    for (index, character) in text.char_indices() {
        let is_special = matches!(
            character,
            '\0'..='\x1f'
                | '\x7f'
                | '"'
                | '#'
                | '%'
                | '\''
                | '*'
                | '/'
                | ':'
                | '='
                | '?'
                | '\\'
                | '{'
                | '['
                | ']'
                | '^'
        );
        if is_special || (index == 0 && text == NULL_PARTITION) {
            out.push('%');
            push_hex_digit(u32::from(character) >> 4, out);
            push_hex_digit(u32::from(character) & 15, out);
        } else {
            out.push(character);
        }
    }
}

fn push_hex_digit(value: u32, out: &mut String) {
    out.push(char::from_digit(value, 16).unwrap_or('0').to_ascii_uppercase());
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int64Array, StringArray, TimestampMillisecondArray};

    use super::*;

    fn rows(days: Vec<Option<&str>>) -> RecordBatch {
        let count = days.len();
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("n", Arc::new((0..count as i64).collect::<Int64Array>())),
            ("day", Arc::new(StringArray::from(days))),
            ("at", Arc::new(TimestampMillisecondArray::from(vec![0; count]))),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true))).unwrap()
    }

    fn split(rows: &RecordBatch, keys: &[&str]) -> Vec<(String, usize)> {
        let keys: Vec<String> = keys.iter().map(|key| key.to_string()).collect();
        let parts = Partitioning::new("t", &rows.schema(), &keys)
            .unwrap()
            .split(&ChangelogBatch::append(rows.clone()))
            .unwrap();
        parts.into_iter().map(|(folder, rows)| (folder, rows.num_rows())).collect()
    }

    #[test]
    fn rows_go_to_the_folder_of_their_values() {
        let rows =
            rows(vec![Some("a/b=c"), None, Some("a/b=c"), Some(""), Some(NULL_PARTITION), Some("é .")]);
        let expected = [
            "day=a%2Fb%3Dc",
            "day=__HIVE_DEFAULT_PARTITION__",
            "day=",
            "day=%5F_HIVE_DEFAULT_PARTITION__",
            "day=é .",
        ];
        let split = split(&rows, &["day"]);
        assert_eq!(split.iter().map(|(folder, _)| folder.as_str()).collect::<Vec<_>>(), expected);
        assert_eq!(split[0].1, 2);
    }

    #[test]
    fn several_keys_nest_in_their_order() {
        let rows = rows(vec![Some("x")]);
        assert_eq!(split(&rows, &["at", "day"]), [("at=1970-01-01 00%3A00%3A00/day=x".to_string(), 1)]);
        let file = Partitioning::new("t", &rows.schema(), &["at".into(), "day".into()])
            .unwrap()
            .split(&ChangelogBatch::append(rows.clone()))
            .unwrap();
        assert_eq!(file[0].1.schema().fields().len(), 1);
    }

    #[test]
    fn impossible_partitions_are_refused() {
        let rows = rows(vec![Some(&"x".repeat(300))]);
        let schema = rows.schema();
        assert!(
            Partitioning::new("t", &schema, &["hour".into()]).unwrap_err().message().contains("\"hour\"")
        );
        assert!(Partitioning::new("t", &schema, &["n".into(), "day".into(), "at".into()]).is_err());
        assert!(
            Partitioning::new("t", &schema, &["day".into()])
                .unwrap()
                .split(&ChangelogBatch::append(rows.clone()))
                .is_err()
        );
    }
}
