//! The dialect as sqlparser sees it: Flink's, on stock sqlparser.
//!
//! The type id is GenericDialect's, so that the parser's hard-coded branches for it are taken;
//! what else is understood is listed one by one, because Generic alone also accepts pipes,
//! CONNECT BY and other things that would be parsed and then silently ignored. Ours are the prefixes
//! `TABLE t [PARTITION BY …]` as an argument and `MAP[k, v, …]`, and the clauses of JSON functions.

mod json;

use std::any::TypeId;
use std::cell::Cell;

use sqlparser::ast::helpers::attached_token::AttachedToken;
use sqlparser::ast::{
    Array, BinaryOperator, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList,
    FunctionArguments, Ident, ObjectName, Query, SelectItem, SetExpr, TableFactor, UnaryOperator,
};
use sqlparser::dialect::{Dialect, GenericDialect};
use sqlparser::keywords::Keyword;
use sqlparser::parser::{Parser, ParserError};
use sqlparser::tokenizer::{Span, Token, TokenWithSpan};

/// The function that stands for a table argument: `TABLE t PARTITION BY a, b` is parsed as
/// `__table_arg((SELECT * FROM t), a, b)`.
pub const TABLE_ARGUMENT: &str = "__table_arg";

/// Flink's dialect, for one parse.
///
/// Where a keyword's own syntax fails (`CAST(…`, `ARRAY[…`), sqlparser tries the word once more as
/// a function or column, so that a mistake inside thirty of them in one another would take 2³⁰
/// attempts. This hook sees every expression begin; so it counts them, and ends the parse when
/// they are far more than the tokens.
#[derive(Debug)]
pub struct StreamDialect {
    attempts_left: Cell<usize>,
}

/// Attempts at an expression per token of the statement; a statement without mistakes needs two.
const ATTEMPTS_PER_TOKEN: usize = 100;

impl StreamDialect {
    /// For a statement of so many tokens.
    pub fn for_tokens(tokens: usize) -> Self {
        Self { attempts_left: Cell::new((tokens + 1) * ATTEMPTS_PER_TOKEN) }
    }

    /// Whether the parse was ended because it tried too often.
    pub fn is_exhausted(&self) -> bool {
        self.attempts_left.get() == 0
    }

    fn attempt(&self) -> Result<(), ParserError> {
        match self.attempts_left.get().checked_sub(1) {
            Some(left) => {
                self.attempts_left.set(left);
                Ok(())
            }
            None => Err(ParserError::RecursionLimitExceeded),
        }
    }
}

macro_rules! supported {
    ($($feature:ident),* $(,)?) => { $(fn $feature(&self) -> bool { true })* };
}

impl Dialect for StreamDialect {
    fn dialect(&self) -> TypeId {
        TypeId::of::<GenericDialect>()
    }
    fn is_identifier_start(&self, ch: char) -> bool {
        ch.is_alphabetic() || ch == '_' || ch == '$'
    }
    fn is_identifier_part(&self, ch: char) -> bool {
        ch.is_alphanumeric() || ch == '_' || ch == '$'
    }
    fn is_delimited_identifier_start(&self, ch: char) -> bool {
        ch == '"' || ch == '`'
    }
    supported!(
        supports_array_typedef_with_brackets,
        supports_boolean_literals,
        supports_comment_optimizer_hint,
        supports_extract_comma_syntax,
        supports_filter_during_aggregation,
        supports_group_by_expr,
        supports_group_by_with_modifier,
        supports_left_associative_joins_without_parens,
        supports_map_literal_with_angle_brackets,
        supports_named_fn_args_with_rarrow_operator,
        supports_nested_comments,
        supports_select_wildcard_except,
        supports_struct_literal,
        supports_subquery_as_function_arg,
        supports_table_versioning,
        supports_unicode_string_literal,
        supports_window_clause_named_window_reference,
        supports_window_function_null_treatment_arg,
        supports_within_after_array_aggregation,
    );
    fn parse_prefix(&self, parser: &mut Parser) -> Option<Result<Expr, ParserError>> {
        if let Err(exhausted) = self.attempt() {
            return Some(Err(exhausted));
        }
        let [first, second] = parser.peek_tokens_ref::<2>();
        let Token::Word(word) = &first.token else { return None };
        match (word.keyword, &second.token) {
            (Keyword::TABLE, Token::Word(_)) => Some(table_argument(parser)),
            (Keyword::MAP, Token::LBracket) => Some(map_literal(parser)),
            _ => json::function(parser),
        }
    }
    fn parse_infix(
        &self,
        parser: &mut Parser,
        expr: &Expr,
        precedence: u8,
    ) -> Option<Result<Expr, ParserError>> {
        json::is_json(parser, expr).or_else(|| symmetric(parser, expr, precedence))
    }
}

/// `a [NOT] BETWEEN SYMMETRIC b AND c`: between them whichever is larger. ASYMMETRIC says nothing.
fn symmetric(parser: &mut Parser, expr: &Expr, precedence: u8) -> Option<Result<Expr, ParserError>> {
    let words = parser.peek_tokens_ref::<3>().map(|token| match &token.token {
        Token::Word(word) if word.quote_style.is_none() => word.value.to_uppercase(),
        _ => String::new(),
    });
    let (negated, sort) = match [words[0].as_str(), &words[1], &words[2]] {
        ["NOT", "BETWEEN", sort] => (true, sort),
        ["BETWEEN", sort, _] => (false, sort),
        _ => return None,
    };
    let symmetric = match sort {
        "SYMMETRIC" => true,
        "ASYMMETRIC" => false,
        _ => return None,
    };
    for _ in 0..if negated { 3 } else { 2 } {
        parser.advance_token();
    }
    let bounds = parser.parse_subexpr(precedence).and_then(|low| {
        parser.expect_keyword(Keyword::AND)?;
        Ok((low, parser.parse_subexpr(precedence)?))
    });
    Some(bounds.map(|(low, high)| {
        let between = |low: &Expr, high: &Expr| Expr::Between {
            expr: Box::new(expr.clone()),
            negated: false,
            low: Box::new(low.clone()),
            high: Box::new(high.clone()),
        };
        let found = match symmetric {
            false => between(&low, &high),
            true => Expr::Nested(Box::new(Expr::BinaryOp {
                left: Box::new(between(&low, &high)),
                op: BinaryOperator::Or,
                right: Box::new(between(&high, &low)),
            })),
        };
        match negated {
            false => found,
            true => Expr::UnaryOp { op: UnaryOperator::Not, expr: Box::new(found) },
        }
    }))
}

/// A subquery rather than `SetExpr::Table`, because DataFusion looks for table names in the AST
/// and does not see the latter.
fn table_argument(parser: &mut Parser) -> Result<Expr, ParserError> {
    let keyword = parser.expect_keyword(Keyword::TABLE)?;
    let span = keyword.span;
    let name = parser.parse_object_name(false)?;
    let mut args = vec![Expr::Subquery(Box::new(select_all(name, keyword)?))];
    if parser.parse_keywords(&[Keyword::PARTITION, Keyword::BY]) {
        args.extend(partition_keys(parser)?);
    }
    Ok(call(TABLE_ARGUMENT, span, args))
}

fn partition_keys(parser: &mut Parser) -> Result<Vec<Expr>, ParserError> {
    if !parser.consume_token(&Token::LParen) {
        return Ok(vec![parser.parse_expr()?]);
    }
    let keys = parser.parse_comma_separated(Parser::parse_expr)?;
    parser.expect_token(&Token::RParen)?;
    Ok(keys)
}

/// `SELECT * FROM name`. The parser builds it, because the struct has some thirty fields that
/// differ from version to version; then the real name and places are put in.
fn select_all(name: ObjectName, keyword: TokenWithSpan) -> Result<Query, ParserError> {
    let mut query = *Parser::new(&GenericDialect).try_with_sql("SELECT * FROM t")?.parse_query()?;
    let SetExpr::Select(select) = query.body.as_mut() else {
        return Err(ParserError::ParserError("a SELECT is not parsed as one".into()));
    };
    for item in &mut select.projection {
        if let SelectItem::Wildcard(options) = item {
            options.wildcard_token = AttachedToken(TokenWithSpan { token: Token::Mul, span: keyword.span });
        }
    }
    select.select_token = AttachedToken(keyword);
    if let Some(TableFactor::Table { name: place, .. }) =
        select.from.first_mut().map(|from| &mut from.relation)
    {
        *place = name;
    }
    Ok(query)
}

/// `MAP[k1, v1, k2, v2]` is `map([k1, k2], [v1, v2])`.
fn map_literal(parser: &mut Parser) -> Result<Expr, ParserError> {
    let keyword = parser.expect_keyword(Keyword::MAP)?;
    parser.expect_token(&Token::LBracket)?;
    let mut entries = vec![];
    if parser.peek_token_ref().token != Token::RBracket {
        entries = parser.parse_comma_separated(Parser::parse_expr)?;
    }
    if entries.len() % 2 == 1 {
        let found = parser.peek_token();
        return parser.expected(", and the value of the last key of MAP[…]", found);
    }
    parser.expect_token(&Token::RBracket)?;
    let (mut keys, mut values) = (vec![], vec![]);
    for (index, entry) in entries.into_iter().enumerate() {
        if index % 2 == 0 { keys.push(entry) } else { values.push(entry) }
    }
    Ok(call("map", keyword.span, vec![array(keys), array(values)]))
}

fn array(elem: Vec<Expr>) -> Expr {
    Expr::Array(Array { elem, named: true })
}

pub(crate) fn call(name: &str, span: Span, args: Vec<Expr>) -> Expr {
    let args = args.into_iter().map(|arg| FunctionArg::Unnamed(FunctionArgExpr::Expr(arg))).collect();
    Expr::Function(Function {
        name: ObjectName::from(vec![Ident::with_span(span, name)]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList {
            duplicate_treatment: None,
            args,
            clauses: vec![],
        }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: vec![],
    })
}
