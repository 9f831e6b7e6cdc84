//! Which tables and views a query names, whether or not they exist.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use sqlparser::ast::{self, visit_relations};

/// The tables and views that a query names, also in subqueries; those of its own WITH included.
pub fn relation_names(query: &ast::Query) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let _: ControlFlow<()> = visit_relations(query, |name| {
        if let Some(part) = name.0.last().and_then(|part| part.as_ident()) {
            names.insert(part.value.clone());
        }
        ControlFlow::Continue(())
    });
    names
}

#[cfg(test)]
mod tests {
    use crate::parser::parse_one;
    use crate::parser::split_statements;
    use crate::statement::Statement;

    fn names(sql: &str) -> Vec<String> {
        let source = split_statements(sql);
        let Statement::Query { query, .. } = parse_one(&source[0]).unwrap().statement else {
            panic!("{sql}")
        };
        super::relation_names(&query).into_iter().collect()
    }

    #[test]
    fn tables_are_found_wherever_a_query_names_them() {
        assert_eq!(names("SELECT * FROM a, `B` AS x JOIN c ON c.i = x.i"), ["B", "a", "c"]);
        assert_eq!(
            names("SELECT (SELECT MAX(i) FROM a) FROM b WHERE i IN (SELECT i FROM c)"),
            ["a", "b", "c"]
        );
        assert_eq!(
            names("WITH w AS (SELECT 1 FROM a) SELECT * FROM w UNION ALL SELECT * FROM b"),
            ["a", "b", "w"]
        );
        assert_eq!(names("SELECT * FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(t), INTERVAL '1' MINUTE))"), ["a"]);
    }
}
