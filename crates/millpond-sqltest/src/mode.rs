//! Modes: the ways in which a file is run. The expected text is the same in all of them.

use millpond::{Error, Random, Result};

/// A way to run a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mode {
    /// Its name, as `--mode` takes it.
    pub name: String,
    /// Settings that every session begins with.
    pub settings: Vec<(String, String)>,
    /// Crash inside jobs, and reopen the engine between statements.
    pub crash: Option<u64>,
    /// Judge each query after every epoch; the seed of the epochs' cuts.
    pub differential: Option<u64>,
    /// Names of the simple modes that it is made of, for `# torture: skip`.
    parts: Vec<&'static str>,
}

/// Simple modes: a name and its settings.
const SIMPLE: &[(&str, &[(&str, &str)])] = &[
    ("one-row-epochs", &[("epoch.rows", "1")]),
    ("batch-1", &[("batch.rows", "1")]),
    ("batch-7", &[("batch.rows", "7")]),
    ("parallelism-1", &[("parallelism", "1")]),
    ("parallelism-2", &[("parallelism", "2")]),
    ("parallelism-4", &[("parallelism", "4")]),
    ("backend-memory", &[("state.backend", "memory")]),
    ("backend-filesystem", &[("state.backend", "filesystem")]),
    ("checkpoint-every-epoch", &[("checkpoint.every-rows", "1"), ("epoch.rows", "3")]),
    ("small-memory", &[("memory.limit", "0")]),
    ("batch", &[("runtime-mode", "batch")]),
];
const CRASH: &str = "crash";
const DIFFERENTIAL: &str = "differential";

impl Mode {
    /// With the defaults.
    pub fn plain() -> Self {
        Self {
            name: "plain".into(),
            settings: Vec::new(),
            crash: None,
            differential: None,
            parts: Vec::new(),
        }
    }

    /// A mode by its name.
    ///
    /// Errors: *Invalid*, with the names there are.
    pub fn named(name: &str, seed: u64) -> Result<Self> {
        match name {
            "plain" => Ok(Self::plain()),
            CRASH => Ok(Self::crashing(seed)),
            "random" => Ok(Self::random(seed)),
            DIFFERENTIAL => Ok(Self::judging(seed)),
            _ => match SIMPLE.iter().find(|(simple, _)| *simple == name) {
                Some((name, settings)) => Ok(Self::simple(name, settings)),
                None => {
                    let names: Vec<&str> = SIMPLE.iter().map(|(name, _)| *name).collect();
                    Err(Error::invalid(format!("unknown test mode {name:?}")).with_hint(format!(
                        "modes: plain, random, crash, differential, {}",
                        names.join(", ")
                    )))
                }
            },
        }
    }

    /// Plain, every simple mode, crash, differential, and three random combinations.
    pub fn all(seed: u64) -> Vec<Self> {
        let simple = SIMPLE.iter().map(|(name, settings)| Self::simple(name, settings));
        let random = (0..3).map(|i| Self::random(seed.wrapping_add(i)));
        [Self::plain()]
            .into_iter()
            .chain(simple)
            .chain([Self::crashing(seed), Self::judging(seed)])
            .chain(random)
            .collect()
    }

    /// Whether it is, or is made of, a simple mode.
    pub fn includes(&self, name: &str) -> bool {
        self.name == name || self.parts.contains(&name)
    }

    /// What `skipif` and `onlyif` know the mode by: its parts, and `crash` or `differential`.
    pub(crate) fn labels(&self) -> Vec<String> {
        self.parts.iter().map(|part| (*part).to_string()).collect()
    }

    fn simple(name: &'static str, settings: &[(&str, &str)]) -> Self {
        let settings = settings.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        Self { name: name.into(), settings, parts: vec![name], ..Self::plain() }
    }

    fn crashing(seed: u64) -> Self {
        let settings = vec![("checkpoint.every-rows".into(), "1".into()), ("epoch.rows".into(), "2".into())];
        Self { name: CRASH.into(), settings, crash: Some(seed), parts: vec![CRASH], ..Self::plain() }
    }

    fn judging(seed: u64) -> Self {
        Self {
            name: DIFFERENTIAL.into(),
            differential: Some(seed),
            parts: vec![DIFFERENTIAL],
            ..Self::plain()
        }
    }

    /// One choice from each group of simple modes that can stand together.
    fn random(seed: u64) -> Self {
        const GROUPS: &[&[&str]] = &[
            &["one-row-epochs", "checkpoint-every-epoch", ""],
            &["batch-1", "batch-7", ""],
            &["parallelism-1", "parallelism-2", "parallelism-4"],
            &["backend-filesystem", ""],
            &["small-memory", ""],
            &[CRASH, ""],
        ];
        let mut random = Random::seeded(seed);
        let chosen: Vec<&str> = GROUPS
            .iter()
            .map(|group| group[random.below(group.len() as u64) as usize])
            .filter(|name| !name.is_empty())
            .collect();
        let mut mode = Self { name: format!("random({})", chosen.join("+")), ..Self::plain() };
        for name in chosen {
            let part = match name {
                CRASH => Self::crashing(random.next_u64()),
                name => SIMPLE
                    .iter()
                    .find(|(simple, _)| *simple == name)
                    .map(|(name, settings)| Self::simple(name, settings))
                    .expect("groups hold names of simple modes"),
            };
            mode.settings.extend(part.settings);
            mode.parts.extend(part.parts);
            mode.crash = mode.crash.or(part.crash);
        }
        mode
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_modes_depend_on_the_seed_alone() {
        assert_eq!(Mode::random(7), Mode::random(7));
        assert!((0..20).any(|seed| Mode::random(seed) != Mode::random(7)));
    }

    #[test]
    fn unknown_modes_are_named() {
        assert!(Mode::named("gentle", 0).unwrap_err().hint().unwrap().contains("one-row-epochs"));
    }
}
