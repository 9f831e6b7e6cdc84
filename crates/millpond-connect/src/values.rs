//! The connector `values`: rows given inline by the option `data`, for tests and small tables.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use millpond_core::limits::READ_BYTES;
use millpond_core::{ChangelogMode, Error, Result};

use crate::connector::{
    ConnectorTable, Position, ReaderContext, SourceConnector, SourcePoll, Split, SplitReader,
};
use crate::factory::TableSpec;
use crate::filesystem::columns::{Assembly, Columns};
use crate::filesystem::reader::{Input, Text, TextReader};
use crate::filesystem::source::parse_position;
use crate::format::{Faults, Format};
use crate::options::Options;

/// The connector's own options.
pub(crate) const OPTIONS: &[&str] = &["data"];
const SPLIT: &str = "values";

/// A table whose rows stand in its definition.
pub(crate) fn open(spec: &TableSpec, options: &mut Options) -> Result<ConnectorTable> {
    let data: Arc<[u8]> = options.require("data")?.into_bytes().into();
    let format = Format::take(spec, options, Some("csv"))?;
    let columns = Columns::of(spec, &format)?;
    if matches!(format, Format::Parquet) || columns.content().len() != spec.schema.fields().len() {
        return Err(Error::invalid(format!(
            "table {:?}: the connector 'values' has neither files nor partitions",
            spec.name
        ))
        .with_hint("use the format csv, json or debezium-json"));
    }
    format
        .check(columns.content(), columns.zone())
        .map_err(|error| error.context(format!("table {:?}", spec.name)))?;
    let source = ValuesSource { schema: spec.schema.clone(), columns, format, data };
    Ok(ConnectorTable { source: Some(Arc::new(source)), ..ConnectorTable::default() })
}

#[derive(Debug)]
struct ValuesSource {
    schema: SchemaRef,
    columns: Columns,
    format: Format,
    data: Arc<[u8]>,
}

impl SourceConnector for ValuesSource {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
    fn is_bounded(&self) -> bool {
        true
    }
    fn mode(&self) -> ChangelogMode {
        self.format.mode()
    }
    fn splits(&self) -> Result<Vec<Split>> {
        Ok(vec![Split { id: SPLIT.into() }])
    }
    fn discovery_interval(&self) -> Option<i64> {
        None
    }
    fn open(
        &self,
        split: &Split,
        position: Option<&Position>,
        context: ReaderContext,
    ) -> Result<Box<dyn SplitReader>> {
        let decoder = self
            .format
            .text_decoder(self.columns.content(), &context.projection, self.columns.zone())?
            .ok_or_else(|| Error::internal("values are text"))?;
        let assembly = self.columns.assembly_of_content(&context.projection)?;
        let input = Input::inline(&split.id, self.data.clone());
        let position = position.map(parse_position).transpose()?;
        let text =
            TextReader::new(input, decoder, Faults::new(context.clone(), &split.id), position, READ_BYTES);
        Ok(Box::new(ValuesReader { text, assembly, faults: Faults::new(context, &split.id) }))
    }
}

struct ValuesReader {
    text: TextReader,
    assembly: Assembly,
    faults: Faults,
}

impl SplitReader for ValuesReader {
    fn poll(&mut self, rows_max: usize) -> Result<SourcePoll> {
        loop {
            match self.text.poll(rows_max)? {
                Text::Rows(decoded) => {
                    let batch = self.assembly.assemble(decoded, &self.faults)?;
                    if !batch.is_empty() {
                        return Ok(SourcePoll::Rows(batch));
                    }
                }
                Text::Waiting | Text::End => return Ok(SourcePoll::End),
            }
        }
    }
    fn position(&self) -> Position {
        Position(serde_json::to_value(self.text.position()).expect("a position is two numbers"))
    }
}
