//! House rules: one place each, checked over the sources and run as a test.

use std::path::{Path, PathBuf};

/// Something that may stand only in some places.
struct OnePlace {
    what: &'static str,
    needles: &'static [&'static str],
    homes: &'static [&'static str],
}

const ONE_PLACE: &[OnePlace] = &[
    OnePlace {
        what: "RocksDB",
        needles: &["rocksdb::"],
        homes: &["millpond-state/src/rocks.rs", "millpond-state/src/rocks/"],
    },
    OnePlace {
        what: "Parquet",
        needles: &["parquet::"],
        homes: &[
            "millpond-state/src/snapshot",
            "millpond-connect/src/format/",
            "millpond-connect/src/filesystem/",
        ],
    },
    OnePlace {
        what: "the wall clock",
        needles: &["SystemTime::now", "Instant::now"],
        homes: &["millpond-core/src/clock.rs", "/examples/"],
    },
    OnePlace { what: "randomness", needles: &["rand::"], homes: &["millpond-core/src/random.rs"] },
    OnePlace {
        what: "spawning of tasks",
        needles: &["tokio::spawn", "spawn_blocking"],
        homes: &[
            "millpond-connect/",
            "millpond-runtime/",
            "millpond/src/",
            "millpond-server/",
            "millpond-sqltest/",
        ],
    },
    OnePlace { what: "environment variables", needles: &["env::var"], homes: &["millpond-cli/"] },
    OnePlace { what: "the terminal", needles: &["rustyline"], homes: &["millpond-cli/"] },
    OnePlace { what: "unfinished code", needles: &["todo!(", "unimplemented!("], homes: &[] },
    OnePlace { what: "an ignored test", needles: &["#[ignore"], homes: &[] },
    // A commit that storage refuses for the moment is tried again, on a background thread.
    OnePlace {
        what: "a sleep in code or test",
        needles: &["thread::sleep"],
        homes: &["millpond-runtime/src/pending.rs"],
    },
];

/// Crates that a crate's manifest must not name: what it must not know.
const MUST_NOT_KNOW: &[(&str, &[&str])] = &[
    ("millpond-core", &["tokio", "datafusion", "rocksdb", "parquet", "millpond-"]),
    (
        "millpond-state",
        &["tokio", "datafusion", "sqlparser", "millpond-operators", "millpond-connect", "millpond-planner"],
    ),
    (
        "millpond-connect",
        &["datafusion", "sqlparser", "rocksdb", "millpond-state", "millpond-operators", "millpond-planner"],
    ),
    (
        "millpond-operators",
        &["tokio", "sqlparser", "rocksdb", "millpond-connect", "millpond-planner", "millpond-runtime"],
    ),
    ("millpond-planner", &["tokio", "rocksdb", "millpond-connect", "millpond-runtime"]),
    ("millpond-runtime", &["datafusion", "sqlparser", "rocksdb", "millpond-planner"]),
    ("millpond", &["rustyline", "clap", "rocksdb"]),
    (
        "millpond-server",
        &[
            "rustyline",
            "clap",
            "datafusion",
            "millpond-core",
            "millpond-state",
            "millpond-operators",
            "millpond-planner",
            "millpond-runtime",
            "millpond-connect",
        ],
    ),
    (
        "millpond-cli",
        &[
            "datafusion",
            "millpond-core",
            "millpond-state",
            "millpond-operators",
            "millpond-planner",
            "millpond-runtime",
            "millpond-connect",
        ],
    ),
];

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default()
}

/// What offends against the house rules, one line each.
pub fn tidy(root: &Path) -> std::io::Result<Vec<String>> {
    let mut offences = Vec::new();
    for file in sources(&root.join("crates"))? {
        let text = std::fs::read_to_string(&file)?;
        let name = file.strip_prefix(root).unwrap_or(&file).to_string_lossy().replace('\\', "/");
        check_source(&name, &text, &mut offences);
    }
    for (name, forbidden) in MUST_NOT_KNOW {
        let manifest = std::fs::read_to_string(root.join("crates").join(name).join("Cargo.toml"))?;
        check_manifest(name, &manifest, forbidden, &mut offences);
    }
    Ok(offences)
}

fn sources(dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(sources(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn check_source(name: &str, text: &str, offences: &mut Vec<String>) {
    if !text.starts_with("//!") {
        offences.push(format!("{name}: does not open with its purpose (//!)"));
    }
    let code: Vec<(usize, &str)> =
        text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//")).collect();
    for rule in ONE_PLACE.iter().filter(|rule| !rule.homes.iter().any(|home| name.contains(home))) {
        for (number, line) in &code {
            if rule.needles.iter().any(|needle| names(line, needle)) {
                offences.push(format!(
                    "{name}:{}: {} has its one place elsewhere: {}",
                    number + 1,
                    rule.what,
                    line.trim()
                ));
            }
        }
    }
}

/// Whether a line has the needle as a word of its own (`rand::` is not in `operand::`).
fn names(line: &str, needle: &str) -> bool {
    line.match_indices(needle).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

fn check_manifest(name: &str, manifest: &str, forbidden: &[&str], offences: &mut Vec<String>) {
    let dependencies = manifest.split("[dependencies]").nth(1).unwrap_or_default();
    let dependencies = dependencies.split("\n[").next().unwrap_or_default();
    for line in dependencies.lines() {
        let dependency = line.split(['.', ' ', '=']).next().unwrap_or_default();
        let known =
            forbidden.iter().any(|f| dependency == *f || (f.ends_with('-') && dependency.starts_with(f)));
        if known {
            offences.push(format!("{name}: must not know {dependency}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_house_is_tidy() {
        let offences = tidy(&root()).unwrap();
        assert!(offences.is_empty(), "{}", offences.join("\n"));
    }

    #[test]
    fn an_offence_is_found() {
        let mut offences = Vec::new();
        check_source(
            "crates/millpond-core/src/x.rs",
            "//! X.\nlet t = Instant::now();\n// Instant::now()\n",
            &mut offences,
        );
        assert_eq!(offences.len(), 1, "{offences:?}");
        check_manifest(
            "millpond-core",
            "[dependencies]\ntokio.workspace = true\n",
            &["tokio"],
            &mut offences,
        );
        assert_eq!(offences.len(), 2, "{offences:?}");
    }

    /// Two versions of one of these do not unify; the lock file decides.
    #[test]
    fn arrow_and_datafusion_resolve_to_one_tree() {
        let lock = std::fs::read_to_string(root().join("Cargo.lock")).unwrap();
        let names: Vec<&str> =
            lock.lines().filter_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"')).collect();
        for pair in names.windows(2) {
            let owned =
                ["arrow", "parquet", "datafusion", "sqlparser"].iter().any(|p| pair[0].starts_with(p));
            assert!(!(owned && pair[0] == pair[1]), "{} is there twice", pair[0]);
        }
        assert!(names.contains(&"datafusion"));
    }
}
