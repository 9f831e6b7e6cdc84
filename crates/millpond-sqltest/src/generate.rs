//! Generated queries over generated tables, judged after every epoch.
//!
//! Every relation has the columns `k INT, j INT, v BIGINT, s STRING`, so that any operator can stand
//! on any other: filters, groups, DISTINCT, joins, set operations, subqueries and Top-N, over tables
//! that only grow and tables that change. Values are few, so that keys meet, and often NULL.

use std::fmt::Write;
use std::path::Path;

use millpond::{Engine, EngineOptions, Error, Random, Result, split_statements};

use crate::judge::{Tally, judge_query};

/// Operators stacked upon each other.
const DEPTH_MAX: u64 = 3;

/// What came of a generated query.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// It agrees with batch.
    Agrees(Tally),
    /// The engine does not have what it uses.
    Lacking(String),
}

/// Judges the query of a seed.
///
/// Errors: *Internal*, with the statements that lead there.
pub(crate) async fn check_query(seed: u64) -> Result<Verdict> {
    let mut random = Random::seeded(seed);
    let folder = tempfile::tempdir().map_err(|error| Error::io("make a temporary folder", &error))?;
    let settings = [
        ("time-zone", "UTC"),
        ("epoch.rows", pick(&mut random, &["1", "2", "3", "8", "100"])),
        ("batch.rows", pick(&mut random, &["1", "2", "5", "8192"])),
        ("parallelism", pick(&mut random, &["1", "1", "2", "4"])),
    ];
    let settings = settings.map(|(key, value)| (key.to_string(), value.to_string())).to_vec();
    let mut tables: Vec<Table> = ["a", "b", "c"].map(|name| Table::random(&mut random, name)).into();
    let query = Generator { random: &mut random, aliases: 0 }.query();
    tables.retain(|table| query.contains(&format!(" {} AS ", table.name)));
    let told = |folder: &Path| {
        let sets: String =
            settings.iter().map(|(key, value)| format!("SET '{key}' = '{value}';\n")).collect();
        let tables: String = tables.iter().map(|table| table.told(folder)).collect();
        format!("query of seed {seed}:\n{sets}{tables}{query};\n")
    };
    judged(&settings, &tables, &query, folder.path())
        .await
        .map_err(|error| Error::internal(format!("{}{error}", told(folder.path()))))
}

async fn judged(
    settings: &[(String, String)],
    tables: &[Table],
    query: &str,
    folder: &Path,
) -> Result<Verdict> {
    let settings = settings.to_vec();
    let engine = Engine::with_options(EngineOptions { settings, ..EngineOptions::default() })?;
    let session = engine.session();
    for table in tables {
        table.write(folder).map_err(|error| Error::io("write a table", &error))?;
        match session.execute(&table.definition(folder)).await {
            Ok(_) => {}
            Err(error) if error.message().contains("not support") => {
                return Ok(Verdict::Lacking(error.message().into()));
            }
            Err(error) => return Err(error),
        }
    }
    let mut tally = Tally::default();
    for source in split_statements(query) {
        let prepared = match session.prepare(&source) {
            Ok(prepared) => prepared,
            Err(error) if error.message().contains("not support") => {
                return Ok(Verdict::Lacking(error.message().into()));
            }
            Err(error) => return Err(error),
        };
        for query in prepared {
            tally.add(judge_query(&session, query).await?);
        }
    }
    Ok(Verdict::Agrees(tally))
}

fn pick<'a>(random: &mut Random, from: &[&'a str]) -> &'a str {
    from[random.below(from.len() as u64) as usize]
}

/// A table's rows, or the changes that make it up.
struct Table {
    name: &'static str,
    /// Records of one file each.
    files: Vec<String>,
    changes: bool,
    /// Whether the changes are known to have a key.
    keyed: bool,
}

type Values = [Option<String>; 4];

impl Table {
    fn random(random: &mut Random, name: &'static str) -> Self {
        let changes = random.below(3) == 0;
        let files = match changes {
            true => vec![Self::random_changes(random)],
            false => (0..1 + random.below(2)).map(|_| Self::random_rows(random)).collect(),
        };
        Self { name, files, changes, keyed: random.below(3) == 0 }
    }

    fn random_values(random: &mut Random) -> Values {
        let mut number = |below: u64, shift: i64| {
            (random.below(6) > 0).then(|| (random.below(below) as i64 - shift).to_string())
        };
        let (k, j, v) = (number(4, 0), number(5, 1), number(40, 10));
        let s = (random.below(6) > 0).then(|| pick(random, &["a", "ab", "b", "B", "é"]).to_string());
        [k, j, v, s]
    }

    fn random_rows(random: &mut Random) -> String {
        let mut text = String::new();
        for _ in 0..random.below(14) {
            let values = Self::random_values(random).map(Option::unwrap_or_default);
            let _ = writeln!(text, "{}", values.join(","));
        }
        text
    }

    /// Inserts, updates and deletes of rows with the key `id`.
    fn random_changes(random: &mut Random) -> String {
        let mut text = String::new();
        let mut rows: Vec<(u64, Values)> = Vec::new();
        for id in 0..random.below(22) {
            let values = Self::random_values(random);
            let (op, before, after) = match random.below(3) {
                0 if !rows.is_empty() => {
                    let (id, before) = rows.swap_remove(random.below(rows.len() as u64) as usize);
                    ("d", Some((id, before)), None)
                }
                1 if !rows.is_empty() => {
                    let at = random.below(rows.len() as u64) as usize;
                    let (id, before) = rows[at].clone();
                    rows[at].1 = values.clone();
                    ("u", Some((id, before)), Some((id, values)))
                }
                _ => {
                    rows.push((id, values.clone()));
                    ("c", None, Some((id, values)))
                }
            };
            let image = |image: Option<(u64, Values)>| {
                image.map_or("null".to_string(), |(id, values)| json(id, &values))
            };
            let _ = writeln!(text, r#"{{"op":"{op}","before":{},"after":{}}}"#, image(before), image(after));
        }
        text
    }

    fn definition(&self, folder: &Path) -> String {
        let (columns, format) = match self.changes {
            true if self.keyed => {
                ("id INT, k INT, j INT, v BIGINT, s STRING, PRIMARY KEY (id) NOT ENFORCED", "debezium-json")
            }
            true => ("id INT, k INT, j INT, v BIGINT, s STRING", "debezium-json"),
            false => ("k INT, j INT, v BIGINT, s STRING", "csv"),
        };
        format!(
            "CREATE TABLE {} ({columns}) WITH ('connector' = 'filesystem', 'path' = '{}', 'format' = '{format}')",
            self.name,
            folder.join(self.name).display()
        )
    }

    fn write(&self, folder: &Path) -> std::io::Result<()> {
        let folder = folder.join(self.name);
        std::fs::create_dir_all(&folder)?;
        for (number, records) in self.files.iter().enumerate() {
            std::fs::write(folder.join(format!("{number}.txt")), records)?;
        }
        Ok(())
    }

    fn told(&self, folder: &Path) -> String {
        let mut text = format!("{};\n", self.definition(folder));
        for (number, records) in self.files.iter().enumerate() {
            let _ = writeln!(text, "-- {}/{number}.txt\n{records}", self.name);
        }
        text
    }
}

fn json(id: u64, [k, j, v, s]: &Values) -> String {
    let number = |value: &Option<String>| value.clone().unwrap_or("null".into());
    let s = s.as_ref().map_or("null".to_string(), |s| format!("\"{s}\""));
    format!(r#"{{"id":{id},"k":{},"j":{},"v":{},"s":{s}}}"#, number(k), number(j), number(v))
}

/// Writes queries.
struct Generator<'a> {
    random: &'a mut Random,
    aliases: usize,
}

impl Generator<'_> {
    fn pick<'b>(&mut self, from: &[&'b str]) -> &'b str {
        pick(self.random, from)
    }

    fn alias(&mut self) -> String {
        self.aliases += 1;
        format!("r{}", self.aliases)
    }

    fn query(&mut self) -> String {
        let depth = 1 + self.random.below(DEPTH_MAX);
        let rows = self.relation(depth);
        match self.random.below(4) {
            0 => format!(
                "SELECT COUNT(*), COUNT(v), SUM(v), MIN(s), MAX(j), COUNT(DISTINCT j), AVG(v) FROM {rows}"
            ),
            1 => format!(
                "SELECT s, COUNT(*) FILTER (WHERE v > 0), COUNT(DISTINCT v), SUM(DISTINCT v), MIN(k) FROM {rows} GROUP BY s"
            ),
            _ => format!("SELECT k, j, v, s FROM {rows}"),
        }
    }

    /// A relation as it stands in FROM, with its alias.
    fn relation(&mut self, depth: u64) -> String {
        let query = match depth {
            0 => return format!("{} AS {}", self.pick(&["a", "b", "c"]), self.alias()),
            _ => self.operator(depth - 1),
        };
        format!("({query}) AS {}", self.alias())
    }

    fn operator(&mut self, depth: u64) -> String {
        match self.random.below(13) {
            0 => self.filter(depth),
            1 => self.projection(depth),
            2 | 3 => self.group(depth),
            4 => {
                let columns = self.pick(&["k, j, v, s", "k, k AS j, CAST(j AS BIGINT) AS v, s"]);
                format!("SELECT DISTINCT {columns} FROM {}", self.relation(depth))
            }
            5..=7 => self.join(depth),
            8 => self.set_operation(depth),
            9 => self.membership(depth),
            10 => self.existence(depth),
            11 => self.top(depth),
            _ => self.scalar(depth),
        }
    }

    fn filter(&mut self, depth: u64) -> String {
        format!("SELECT k, j, v, s FROM {} WHERE {}", self.relation(depth), self.predicate())
    }

    fn predicate(&mut self) -> String {
        let number = self.random.below(8) as i64 - 2;
        match self.random.below(10) {
            0 => format!("v > {number}"),
            1 => "j IS NULL".into(),
            2 => "s LIKE 'a%'".into(),
            3 => format!("k IN (1, 2, {number})"),
            4 => format!("NOT (k = j OR v < {number})"),
            5 => "s IS DISTINCT FROM 'b'".into(),
            6 => format!("COALESCE(k, {number}) >= 1"),
            7 => "k = j".into(),
            8 => format!("v BETWEEN {number} AND {}", number + 12),
            _ => format!("CASE WHEN s IS NULL THEN k > 0 ELSE v <> {number} END"),
        }
    }

    fn projection(&mut self, depth: u64) -> String {
        let columns = self.pick(&[
            "j AS k, k AS j, v + 1 AS v, UPPER(s) AS s",
            "k, j, -v AS v, CASE WHEN j > 1 THEN s END AS s",
            "COALESCE(j, k) AS k, j, CAST(k AS BIGINT) * 2 AS v, s || 'x' AS s",
            "k, CAST(NULL AS INT) AS j, v, 'c' AS s",
        ]);
        format!("SELECT {columns} FROM {}", self.relation(depth))
    }

    fn group(&mut self, depth: u64) -> String {
        let v = self.pick(&[
            "SUM(v)",
            "COUNT(*)",
            "MIN(v)",
            "MAX(v)",
            "COUNT(DISTINCT v)",
            "SUM(v) FILTER (WHERE j > 0)",
            "AVG(v)",
        ]);
        let j = self.pick(&["MIN(j)", "MAX(j)", "CAST(COUNT(s) AS INT)"]);
        let having =
            self.pick(&["", "", " HAVING COUNT(*) > 1", " HAVING SUM(v) > 5", " HAVING MAX(s) = 'b'"]);
        let rows = self.relation(depth);
        match self.random.below(3) {
            0 => format!("SELECT k, {j} AS j, {v} AS v, MAX(s) AS s FROM {rows} GROUP BY k{having}"),
            1 => format!("SELECT k, j, {v} AS v, s FROM {rows} GROUP BY k, j, s{having}"),
            _ => format!(
                "SELECT CAST(COUNT(*) AS INT) AS k, {j} AS j, {v} AS v, s FROM {rows} GROUP BY s{having}"
            ),
        }
    }

    fn join(&mut self, depth: u64) -> String {
        let kind = self.pick(&["JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"]);
        let on = self.pick(&[
            "l.k = r.k",
            "l.k = r.j",
            "l.k = r.k AND l.s = r.s",
            "l.k = r.k AND l.j < r.j",
            "l.k = r.k AND l.v > 3",
        ]);
        let columns = self.pick(&[
            "l.k, r.j, l.v, r.s",
            "r.k, l.j, l.v + r.v AS v, l.s",
            "COALESCE(l.k, r.k) AS k, l.j, r.v, COALESCE(l.s, r.s) AS s",
        ]);
        let (left, right) = (self.relation(depth), self.relation(depth.min(1)));
        format!(
            "SELECT {columns} FROM (SELECT * FROM {left}) AS l {kind} (SELECT * FROM {right}) AS r ON {on}"
        )
    }

    fn set_operation(&mut self, depth: u64) -> String {
        let operation = self.pick(&["UNION ALL", "UNION ALL", "UNION", "INTERSECT", "EXCEPT"]);
        let (left, right) = (self.relation(depth), self.relation(depth.min(1)));
        format!("SELECT k, j, v, s FROM {left} {operation} SELECT k, j, v, s FROM {right}")
    }

    fn membership(&mut self, depth: u64) -> String {
        let (left, right) = (self.relation(depth), self.relation(depth.min(1)));
        // NOT IN over a column that may be NULL is true for hardly anything.
        let test = match self.random.below(2) {
            0 => format!("k IN (SELECT j FROM {right})"),
            _ => format!("k NOT IN (SELECT j FROM {right} WHERE j IS NOT NULL)"),
        };
        format!("SELECT k, j, v, s FROM {left} WHERE {test}")
    }

    fn existence(&mut self, depth: u64) -> String {
        let (left, right) = (self.relation(depth), self.relation(depth.min(1)));
        let not = self.pick(&["", "NOT "]);
        format!(
            "SELECT k, j, v, s FROM (SELECT * FROM {left}) AS l WHERE {not}EXISTS (SELECT 1 FROM (SELECT * FROM {right}) AS r WHERE r.k = l.k)"
        )
    }

    /// All columns order the rows, so that rows that tie are alike.
    fn top(&mut self, depth: u64) -> String {
        let order = self.pick(&["v DESC, j, s, k", "j, v, s DESC, k", "s, v DESC, j, k"]);
        let partition = self.pick(&["PARTITION BY k ", "PARTITION BY s ", ""]);
        let n = 1 + self.random.below(3);
        format!(
            "SELECT k, j, v, s FROM (SELECT *, ROW_NUMBER() OVER ({partition}ORDER BY {order}) AS rn FROM {}) WHERE rn <= {n}",
            self.relation(depth)
        )
    }

    fn scalar(&mut self, depth: u64) -> String {
        let (left, right) = (self.relation(depth), self.relation(depth.min(1)));
        let value = self.pick(&["MAX(v)", "COUNT(*)", "SUM(v)"]);
        format!("SELECT k, j, v, s FROM {left} WHERE v < (SELECT {value} FROM {right})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn generated_queries_agree_with_batch() {
        let mut judged = Tally::default();
        for seed in 0..120 {
            match check_query(seed).await.unwrap_or_else(|error| panic!("{error}")) {
                Verdict::Agrees(tally) => judged.add(tally),
                Verdict::Lacking(_) => {}
            }
        }
        assert!(judged.queries > 10, "{judged:?}");
    }

    #[test]
    fn a_seed_always_gives_the_same_query() {
        let query = |seed| Generator { random: &mut Random::seeded(seed), aliases: 0 }.query();
        assert_eq!(query(3), query(3));
        assert!((4..30).any(|seed| query(seed) != query(3)));
    }
}
