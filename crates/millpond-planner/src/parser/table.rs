//! CREATE and DROP of tables and views.

use millpond_core::{Error, Location, Result};
use sqlparser::ast;
use sqlparser::parser::Parser;
use sqlparser::tokenizer::Token;

use super::StatementParser;
use crate::statement::{Column, ColumnKind, CreateTable, CreateView, Statement, Watermark};

impl StatementParser<'_> {
    /// Behind `CREATE [TEMPORARY] TABLE`. A table may be without columns: some connectors know theirs.
    pub(super) fn create_table(&mut self, temporary: bool) -> Result<Statement> {
        let if_not_exists = self.if_not_exists();
        let mut table = CreateTable {
            name: self.name("the name of a table")?,
            if_not_exists,
            temporary,
            columns: vec![],
            watermark: None,
            primary_key: vec![],
            partitioned_by: vec![],
            comment: None,
            options: vec![],
        };
        if self.take_symbol(&Token::LParen) {
            self.elements(&mut table)?;
        }
        while self.table_clause(&mut table)? {}
        Ok(Statement::CreateTable(Box::new(table)))
    }

    fn elements(&mut self, table: &mut CreateTable) -> Result<()> {
        loop {
            let what = self.element(table)?;
            if self.take_symbol(&Token::RParen) {
                return Ok(());
            }
            self.expect_symbol(&Token::Comma, &format!(") or , after {what}"))?;
            if self.peek(0).token == Token::RParen {
                return Err(self.unexpected("a column").with_hint("remove the comma before )"));
            }
        }
    }

    /// One element between the parentheses; returns what it was.
    fn element(&mut self, table: &mut CreateTable) -> Result<&'static str> {
        if self.at(&["WATERMARK", "FOR"]) {
            self.watermark(table)?;
            return Ok("the watermark");
        }
        if self.at(&["CONSTRAINT"]) && !self.at_column_type() {
            self.advance(1);
            self.name("the name of a constraint")?;
            if !self.at(&["PRIMARY", "KEY"]) {
                return Err(self.unsupported("a constraint other than PRIMARY KEY", "remove it"));
            }
        }
        if self.at(&["PRIMARY", "KEY"]) {
            self.table_primary_key(table)?;
            return Ok("the primary key");
        }
        for constraint in [&["FOREIGN", "KEY"][..], &["UNIQUE"], &["CHECK"]] {
            if self.at(constraint) && self.peek(constraint.len()).token == Token::LParen {
                return Err(self.unsupported(&constraint.join(" "), "remove it"));
            }
        }
        self.column(table)?;
        Ok("the column's definition")
    }

    /// Whether the next word is a column's name because what follows it ends a definition.
    fn at_column_type(&self) -> bool {
        !matches!(self.peek(2).token, Token::Word(_))
    }

    fn watermark(&mut self, table: &mut CreateTable) -> Result<()> {
        let start = self.here();
        self.advance(2);
        let column = self.name("the name of the time column")?;
        self.expect("AS")?;
        let expr = self.delegate(Parser::parse_expr)?;
        if table.watermark.is_some() {
            return Err(once("WATERMARK", table, start));
        }
        table.watermark = Some(Watermark { column, expr });
        Ok(())
    }

    fn table_primary_key(&mut self, table: &mut CreateTable) -> Result<()> {
        let start = self.here();
        self.advance(2);
        let columns = self.names("the name of a column")?;
        self.set_primary_key(table, columns, start)
    }

    /// Behind `PRIMARY KEY`, of the table or of a column.
    fn set_primary_key(
        &mut self,
        table: &mut CreateTable,
        columns: Vec<ast::Ident>,
        start: Location,
    ) -> Result<()> {
        if self.at(&["ENFORCED"]) {
            return Err(self.unsupported("an enforced primary key", "write NOT ENFORCED"));
        }
        self.take(&["NOT", "ENFORCED"]);
        if !table.primary_key.is_empty() {
            return Err(once("PRIMARY KEY", table, start));
        }
        table.primary_key = columns;
        Ok(())
    }

    fn column(&mut self, table: &mut CreateTable) -> Result<()> {
        let name = self.name("the name of a column")?;
        let kind = if self.take(&["AS"]) {
            ColumnKind::Computed { expr: Box::new(self.delegate(Parser::parse_expr)?) }
        } else {
            let data_type = self.delegate(Parser::parse_data_type)?;
            ColumnKind::Physical { data_type, not_null: false }
        };
        let mut column = Column { name, kind, comment: None };
        while self.column_option(table, &mut column)? {}
        table.columns.push(column);
        Ok(())
    }

    /// One thing behind a column's type; whether there was one.
    fn column_option(&mut self, table: &mut CreateTable, column: &mut Column) -> Result<bool> {
        let start = self.here();
        if self.take(&["COMMENT"]) {
            column.comment = Some(self.string("the comment in single quotes")?);
            return Ok(true);
        }
        let ColumnKind::Physical { data_type, not_null } = &mut column.kind else { return Ok(false) };
        if self.take(&["NOT", "NULL"]) {
            *not_null = true;
        } else if self.take(&["PRIMARY", "KEY"]) {
            self.set_primary_key(table, vec![column.name.clone()], start)?;
        } else if self.take(&["METADATA"]) {
            let data_type = data_type.clone();
            let from =
                if self.take(&["FROM"]) { Some(self.string("the key in single quotes")?) } else { None };
            let is_virtual = self.take(&["VIRTUAL"]);
            column.kind = ColumnKind::Metadata { data_type, from, is_virtual };
        } else {
            self.refuse_column_option()?;
            return Ok(self.take(&["NULL"]));
        }
        Ok(true)
    }

    fn refuse_column_option(&self) -> Result<()> {
        const REFUSED: [(&str, &str); 6] = [
            ("CHECK", "remove it"),
            ("DEFAULT", "use COALESCE where the column is read"),
            ("GENERATED", "a computed column is written: name AS expression"),
            ("REFERENCES", "remove it"),
            ("UNIQUE", "use PRIMARY KEY"),
            ("VIRTUAL", "it stands behind METADATA"),
        ];
        match REFUSED.iter().find(|(word, _)| self.at(&[word])) {
            Some((word, hint)) => Err(self.unsupported(&format!("{word} of a column"), hint)),
            None => Ok(()),
        }
    }

    /// One clause behind the columns; whether there was one.
    fn table_clause(&mut self, table: &mut CreateTable) -> Result<bool> {
        let start = self.here();
        if self.take(&["COMMENT"]) {
            table.comment = Some(self.string("the comment in single quotes")?);
        } else if self.take(&["PARTITIONED", "BY"]) {
            table.partitioned_by = self.names("the name of a column")?;
        } else if self.take(&["WITH"]) {
            if !table.options.is_empty() {
                return Err(once("WITH", table, start));
            }
            table.options = self.options()?;
        } else if self.at(&["LIKE"]) {
            return Err(self.unsupported("CREATE TABLE … LIKE", "list the columns"));
        } else if self.at(&["AS"]) {
            return Err(
                self.unsupported("CREATE TABLE … AS SELECT", "list the columns, then INSERT INTO the table")
            );
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// `('k' = 'v', …)`; keys and values may also be bare words and numbers.
    fn options(&mut self) -> Result<Vec<(String, String, Location)>> {
        self.expect_symbol(&Token::LParen, "( after WITH")?;
        let mut options: Vec<(String, String, Location)> = vec![];
        if self.take_symbol(&Token::RParen) {
            return Ok(options);
        }
        loop {
            let (key, location) = self.option_key("an option's name in single quotes")?;
            self.expect_symbol(&Token::Eq, &format!("= after '{key}'"))?;
            let value = self.option_value(&key)?;
            if options.iter().any(|(other, _, _)| *other == key) {
                return Err(Error::invalid(format!("option '{key}' is given twice"))
                    .with_hint("remove one of them")
                    .with_location(Some(location)));
            }
            options.push((key, value, location));
            if self.take_symbol(&Token::RParen) {
                return Ok(options);
            }
            self.expect_symbol(&Token::Comma, ") or , after an option")?;
        }
    }

    /// Behind `CREATE [TEMPORARY] VIEW`. A comment is read and dropped: nothing shows it yet.
    pub(super) fn create_view(&mut self, temporary: bool) -> Result<Statement> {
        let if_not_exists = self.if_not_exists();
        let name = self.name("the name of a view")?;
        let listed = self.peek(0).token == Token::LParen;
        let columns = if listed { self.names("the name of a column")? } else { vec![] };
        if self.take(&["COMMENT"]) {
            self.string("the comment in single quotes")?;
        }
        self.expect("AS")?;
        let query_text = self.text_from(self.here()).to_owned();
        let query = self.query()?;
        Ok(Statement::CreateView(CreateView { name, columns, if_not_exists, temporary, query, query_text }))
    }

    /// Behind `DROP [TEMPORARY] TABLE`.
    pub(super) fn drop_table(&mut self) -> Result<Statement> {
        let if_exists = self.take(&["IF", "EXISTS"]);
        Ok(Statement::DropTable { name: self.name("the name of a table")?, if_exists })
    }

    /// Behind `DROP [TEMPORARY] VIEW`.
    pub(super) fn drop_view(&mut self) -> Result<Statement> {
        let if_exists = self.take(&["IF", "EXISTS"]);
        Ok(Statement::DropView { name: self.name("the name of a view")?, if_exists })
    }
}

fn once(clause: &str, table: &CreateTable, place: Location) -> Error {
    Error::invalid(format!("table \"{}\" has more than one {clause}", table.name.value))
        .with_hint("keep one of them")
        .with_location(Some(place))
}
