//! Random damage: rows that are read are right, or reading is refused; nothing panics.

use super::model::files_below;
use super::*;

/// Five checkpoints with a rescale and a failure between them.
fn damaged_soon(backend: Backend, folder: &Path) -> BTreeMap<CheckpointId, model::Contents> {
    let mut random = Random::seeded(31);
    let mut job = Job::open(backend, folder, 2);
    for round in 0..6 {
        job.change(&mut random, 20);
        match round {
            2 => job.fail_checkpoint(),
            3 => {
                job.checkpoint();
                job.restart(3);
            }
            _ => job.checkpoint(),
        }
    }
    job.crash()
}

fn copy(from: &Path, to: &Path) {
    for file in files_below(from) {
        fs::create_dir_all(to.join(&file).parent().unwrap()).unwrap();
        fs::copy(from.join(&file), to.join(&file)).unwrap();
    }
}

/// Damages one or two of the files; what was done, for the message.
fn damage(folder: &Path, random: &mut Random) -> String {
    let files = files_below(folder);
    let any = |random: &mut Random| folder.join(&files[random.below(files.len() as u64) as usize]);
    let (one, other) = (any(random), any(random));
    let mut content = fs::read(&one).unwrap();
    let at = random.below(content.len() as u64) as usize;
    match random.below(6) {
        0 | 1 if !content.is_empty() => {
            content[at] ^= 1 << random.below(8);
            fs::write(&one, content).unwrap();
            format!("flip at {at} of {one:?}")
        }
        2 => {
            fs::write(&one, &content[..at]).unwrap();
            format!("cut {one:?} at {at}")
        }
        3 => {
            content[at..].fill(0);
            fs::write(&one, content).unwrap();
            format!("zero {one:?} from {at}")
        }
        4 => {
            fs::remove_file(&one).unwrap();
            format!("delete {one:?}")
        }
        _ => {
            let swapped = fs::read(&other).unwrap();
            fs::write(&one, swapped).unwrap();
            fs::write(&other, content).unwrap();
            format!("swap {one:?} and {other:?}")
        }
    }
}

/// `CORRUPTIONS=10000 cargo test -p millpond-state damage` for more rounds.
fn torture(backend: Backend, rounds: u64) {
    let rounds = option_env!("CORRUPTIONS").and_then(|rounds| rounds.parse().ok()).unwrap_or(rounds);
    let original = tempfile::tempdir().unwrap();
    let history = damaged_soon(backend, original.path());
    let mut survivors = 0;
    for seed in 0..rounds {
        let mut random = Random::seeded(seed);
        let folder = tempfile::tempdir().unwrap();
        copy(original.path(), folder.path());
        let done = damage(folder.path(), &mut random);
        let mut job = Job::reopen(backend, folder.path(), &history).unwrap();
        assert!(job.store().generation() >= 3, "{done}");
        let valid = job.store().checkpoints(Verify::Crc).unwrap();
        survivors += valid.len();
        for stored in &valid {
            let found = job.read(&stored.metadata, 1 + random.below(3) as usize);
            assert_eq!(found, history[&stored.metadata.checkpoint], "{done}");
        }
        // And the job goes on from there.
        job.restart(3);
        job.change(&mut random, 10);
        job.checkpoint();
        let newest = job.newest().metadata;
        assert_eq!(job.read(&newest, 2), job.history[&newest.checkpoint], "{done}");
    }
    assert!(survivors as u64 > rounds, "of three checkpoints some survive a damaged file");
}

#[test]
fn damaged_files_never_give_wrong_rows() {
    torture(Backend::Filesystem, 300);
}

#[cfg(feature = "rocksdb")]
#[test]
fn damaged_native_files_never_give_wrong_rows() {
    torture(Backend::Rocksdb, 60);
}
