//! The clauses of JSON functions, which become plain arguments:
//! `JSON_VALUE(j, p RETURNING INT DEFAULT 0 ON EMPTY)` is parsed as
//! `json_value(j, p, 'INT', 'DEFAULT', 0, 'NULL', NULL)`.

use sqlparser::ast::{Expr, UnaryOperator, Value};
use sqlparser::keywords::Keyword;
use sqlparser::parser::{Parser, ParserError};
use sqlparser::tokenizer::Token;

use super::call;

/// The call of a JSON function with clauses, if one comes next.
pub(super) fn function(parser: &mut Parser) -> Option<Result<Expr, ParserError>> {
    let [first, second] = parser.peek_tokens_ref::<2>();
    let Token::Word(word) = &first.token else { return None };
    if second.token != Token::LParen || word.quote_style.is_some() {
        return None;
    }
    let parse = match word.value.to_uppercase().as_str() {
        "JSON_VALUE" => json_value,
        "JSON_QUERY" => json_query,
        "JSON_EXISTS" => json_exists,
        "JSON_OBJECT" => json_object,
        "JSON_ARRAY" => json_array,
        _ => return None,
    };
    let (name, span) = (word.value.to_lowercase(), first.span);
    parser.advance_token();
    parser.advance_token();
    Some(parse(parser).and_then(|arguments| {
        parser.expect_token(&Token::RParen)?;
        Ok(call(&name, span, arguments))
    }))
}

/// `IS [NOT] JSON [VALUE | SCALAR | ARRAY | OBJECT]` behind an expression, if it comes next.
pub(super) fn is_json(parser: &mut Parser, expr: &Expr) -> Option<Result<Expr, ParserError>> {
    let words = parser.peek_tokens_ref::<3>().map(|token| match &token.token {
        Token::Word(word) if word.quote_style.is_none() => word.value.to_uppercase(),
        _ => String::new(),
    });
    let negated = match [words[0].as_str(), &words[1], &words[2]] {
        ["IS", "NOT", "JSON"] => true,
        ["IS", "JSON", _] => false,
        _ => return None,
    };
    let span = parser.peek_token_ref().span;
    for _ in 0..if negated { 3 } else { 2 } {
        parser.advance_token();
    }
    let sort = ["VALUE", "SCALAR", "ARRAY", "OBJECT"].into_iter().find(|sort| take(parser, &[sort]));
    let test = call("is_json", span, vec![expr.clone(), text(sort.unwrap_or("VALUE"))]);
    Some(Ok(match negated {
        true => Expr::UnaryOp { op: UnaryOperator::Not, expr: Box::new(test) },
        false => test,
    }))
}

fn text(text: &str) -> Expr {
    Expr::value(Value::SingleQuotedString(text.to_owned()))
}

/// Takes these words, if they come next.
fn take(parser: &mut Parser, words: &[&str]) -> bool {
    let is_next = words.iter().enumerate().all(|(ahead, word)| {
        matches!(&parser.peek_nth_token_ref(ahead).token, Token::Word(next) if next.value.eq_ignore_ascii_case(word))
    });
    if is_next {
        for _ in words {
            parser.advance_token();
        }
    }
    is_next
}

fn document_and_path(parser: &mut Parser) -> Result<Vec<Expr>, ParserError> {
    let document = parser.parse_expr()?;
    parser.expect_token(&Token::Comma)?;
    Ok(vec![document, parser.parse_expr()?])
}

fn returning(parser: &mut Parser) -> Result<Expr, ParserError> {
    match parser.parse_keyword(Keyword::RETURNING) {
        true => Ok(text(&parser.parse_data_type()?.to_string())),
        false => Ok(text("STRING")),
    }
}

/// What happens ON EMPTY and ON ERROR: a word, and a default beside it.
struct Behaviours {
    on_empty: [Expr; 2],
    on_error: [Expr; 2],
}

fn behaviours(parser: &mut Parser, words: &[&str]) -> Result<Behaviours, ParserError> {
    let none = || [text("NULL"), Expr::value(Value::Null)];
    let mut found = Behaviours { on_empty: none(), on_error: none() };
    loop {
        let known = words.iter().find(|words| take(parser, &words.split(' ').collect::<Vec<_>>()));
        let behaviour = match known {
            None => return Ok(found),
            Some(&"DEFAULT") => [text("DEFAULT"), parser.parse_expr()?],
            Some(word) => [text(word), Expr::value(Value::Null)],
        };
        if take(parser, &["ON", "EMPTY"]) {
            found.on_empty = behaviour;
        } else if take(parser, &["ON", "ERROR"]) {
            found.on_error = behaviour;
        } else {
            return parser.expected("ON EMPTY or ON ERROR", parser.peek_token());
        }
    }
}

fn json_value(parser: &mut Parser) -> Result<Vec<Expr>, ParserError> {
    let mut arguments = document_and_path(parser)?;
    arguments.push(returning(parser)?);
    let found = behaviours(parser, &["NULL", "ERROR", "DEFAULT"])?;
    arguments.extend(found.on_empty.into_iter().chain(found.on_error));
    Ok(arguments)
}

fn json_query(parser: &mut Parser) -> Result<Vec<Expr>, ParserError> {
    let mut arguments = document_and_path(parser)?;
    arguments.push(returning(parser)?);
    let wrappers: [(&[&str], &str); 7] = [
        (&["WITHOUT", "ARRAY", "WRAPPER"], "WITHOUT"),
        (&["WITHOUT", "WRAPPER"], "WITHOUT"),
        (&["WITH", "CONDITIONAL", "ARRAY", "WRAPPER"], "CONDITIONAL"),
        (&["WITH", "CONDITIONAL", "WRAPPER"], "CONDITIONAL"),
        (&["WITH", "UNCONDITIONAL", "ARRAY", "WRAPPER"], "UNCONDITIONAL"),
        (&["WITH", "UNCONDITIONAL", "WRAPPER"], "UNCONDITIONAL"),
        (&["WITH", "WRAPPER"], "UNCONDITIONAL"),
    ];
    let wrapper = wrappers.into_iter().find(|(words, _)| take(parser, words)).map(|(_, wrapper)| wrapper);
    let wrapper = wrapper.unwrap_or(if take(parser, &["WITH", "ARRAY", "WRAPPER"]) {
        "UNCONDITIONAL"
    } else {
        "WITHOUT"
    });
    arguments.push(text(wrapper));
    let found = behaviours(parser, &["NULL", "ERROR", "EMPTY ARRAY", "EMPTY OBJECT"])?;
    let [on_empty, _] = found.on_empty;
    let [on_error, _] = found.on_error;
    arguments.extend([on_empty, on_error]);
    Ok(arguments)
}

fn json_exists(parser: &mut Parser) -> Result<Vec<Expr>, ParserError> {
    let mut arguments = document_and_path(parser)?;
    let behaviour = ["TRUE", "FALSE", "UNKNOWN", "ERROR"].into_iter().find(|word| take(parser, &[word]));
    if let Some(behaviour) = behaviour {
        if !take(parser, &["ON", "ERROR"]) {
            return parser.expected("ON ERROR", parser.peek_token());
        }
        arguments.push(text(behaviour));
    }
    Ok(arguments)
}

/// The letter of a member: `r` if it is JSON already, `v` if it is a value.
fn sort_of(member: &Expr) -> char {
    const GIVES_JSON: [&str; 3] = ["json_object", "json_array", "json_query"];
    match member {
        Expr::Function(function) if GIVES_JSON.contains(&function.name.to_string().as_str()) => 'r',
        _ => 'v',
    }
}

/// The first argument: what is done with NULLs, and the sorts of all members.
fn on_null(parser: &mut Parser, otherwise: &str, sorts: &str) -> Expr {
    let found = ["NULL", "ABSENT"].into_iter().find(|word| take(parser, &[word, "ON", "NULL"]));
    text(&format!("{}:{sorts}", found.unwrap_or(otherwise)))
}

fn at_end_of_members(parser: &Parser) -> bool {
    let word = |ahead: usize| match &parser.peek_nth_token_ref(ahead).token {
        Token::Word(word) => word.value.to_uppercase(),
        other => other.to_string(),
    };
    word(0) == ")" || (["NULL", "ABSENT"].contains(&word(0).as_str()) && word(1) == "ON" && word(2) == "NULL")
}

fn json_object(parser: &mut Parser) -> Result<Vec<Expr>, ParserError> {
    let (mut members, mut sorts) = (Vec::new(), String::new());
    while !at_end_of_members(parser) {
        take(parser, &["KEY"]);
        let key = parser.parse_expr()?;
        if !take(parser, &["VALUE"]) {
            return parser.expected("VALUE", parser.peek_token());
        }
        let value = parser.parse_expr()?;
        sorts.push(sort_of(&value));
        members.extend([key, value]);
        if !parser.consume_token(&Token::Comma) {
            break;
        }
    }
    Ok(std::iter::once(on_null(parser, "NULL", &sorts)).chain(members).collect())
}

fn json_array(parser: &mut Parser) -> Result<Vec<Expr>, ParserError> {
    let (mut items, mut sorts) = (Vec::new(), String::new());
    while !at_end_of_members(parser) {
        let item = parser.parse_expr()?;
        sorts.push(sort_of(&item));
        items.push(item);
        if !parser.consume_token(&Token::Comma) {
            break;
        }
    }
    Ok(std::iter::once(on_null(parser, "ABSENT", &sorts)).chain(items).collect())
}
