//! What crashes and failing disks leave behind: the checkpoint before it is used,
//! or reading is refused.

use super::model::files_below;
use super::*;

/// A folder with checkpoints 1 to 4 (2 to 4 retained), whose job has crashed.
fn crashed(folder: &Path) -> BTreeMap<CheckpointId, model::Contents> {
    let mut random = Random::seeded(21);
    let mut job = Job::open(Backend::Filesystem, folder, 2);
    for _ in 0..4 {
        job.change(&mut random, 20);
        job.checkpoint();
    }
    job.crash()
}

/// Leaves something, opens again, and answers the valid checkpoints after having compared them.
fn after(leave: impl FnOnce(&Path), verify: Verify) -> (tempfile::TempDir, Vec<u64>, Job) {
    let folder = tempfile::tempdir().unwrap();
    let history = crashed(folder.path());
    leave(folder.path());
    let job = Job::reopen(Backend::Filesystem, folder.path(), &history).unwrap();
    let valid = job.store().checkpoints(verify).unwrap();
    let numbers = valid.iter().map(|stored| stored.metadata.checkpoint.0).collect();
    (folder, numbers, job)
}

fn write(path: &Path, content: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// A part that only checkpoint 4 refers to.
fn part_of_newest(folder: &Path) -> std::path::PathBuf {
    let newest = files_below(folder).into_iter().find(|path| path.contains("-0-4-1.parquet"));
    folder.join(newest.unwrap())
}

#[test]
fn a_folder_without_metadata_never_was_a_checkpoint() {
    let leave = |folder: &Path| {
        write(&folder.join("chk-9/metadata.json.tmp"), b"{");
        write(&folder.join("native/chk-9/db/CURRENT"), b"x");
        fs::create_dir(folder.join("chk-8")).unwrap();
    };
    let (folder, valid, job) = after(leave, Verify::Crc);
    assert_eq!(valid, [4, 3, 2]);
    assert_eq!(job.store().last_checkpoint_id(), CheckpointId(9));
    assert!(!files_below(folder.path()).iter().any(|path| path.contains("chk-9")));
    job.verify();
}

#[test]
fn parts_of_dead_starts_are_collected_and_unknown_names_stay() {
    let table = "shared/op=agg%2F1%20%C3%A4/table=value";
    let leave = |folder: &Path| {
        write(&folder.join(table).join("delta-0-5-1.parquet"), b"orphan");
        write(&folder.join(table).join("delta-0-5-1.parquet.tmp"), b"orphan");
        write(&folder.join(table).join("notes.txt"), b"mine");
        write(&folder.join("chk-9/notes.txt"), b"mine");
        write(&folder.join("chk-x/metadata.json"), b"mine");
    };
    let (folder, valid, job) = after(leave, Verify::Crc);
    assert_eq!(valid, [4, 3, 2]);
    assert_eq!(job.store().last_checkpoint_id(), CheckpointId(9));
    let files = files_below(folder.path());
    assert!(!files.iter().any(|path| path.contains("-5-1.parquet")));
    for mine in [&format!("{table}/notes.txt"), "chk-9/notes.txt", "chk-x/metadata.json"] {
        assert!(files.iter().any(|path| path == mine), "{mine}");
    }
    job.verify();
}

#[test]
fn retention_that_stopped_halfway_is_completed() {
    let leave = |folder: &Path| {
        fs::rename(folder.join("chk-2/metadata.json"), folder.join("chk-2/metadata.json.deleted")).unwrap();
    };
    let (folder, valid, job) = after(leave, Verify::Crc);
    assert_eq!(valid, [4, 3]);
    assert!(!folder.path().join("chk-2").exists());
    job.verify();
}

#[test]
fn metadata_of_missing_or_cut_parts_falls_back() {
    let missing = |folder: &Path| fs::remove_file(part_of_newest(folder)).unwrap();
    let cut = |folder: &Path| {
        let path = part_of_newest(folder);
        let content = fs::read(&path).unwrap();
        fs::write(path, &content[..content.len() - 1]).unwrap();
    };
    for verify in [Verify::Size, Verify::Crc] {
        for leave in [&missing as &dyn Fn(&Path), &cut] {
            let (folder, valid, job) = after(leave, verify);
            assert_eq!(valid, [3, 2]);
            assert!(folder.path().join("chk-4/metadata.json.corrupt").exists());
            job.verify();
        }
    }
}

#[test]
fn a_flipped_bit_is_found_at_the_latest_when_read() {
    let flip = |folder: &Path| {
        let path = part_of_newest(folder);
        let mut content = fs::read(&path).unwrap();
        content[10] ^= 4;
        fs::write(path, content).unwrap();
    };
    let (_folder, valid, job) = after(flip, Verify::Size);
    assert_eq!(valid, [4, 3, 2]);
    let newest = job.newest().metadata;
    assert_eq!(job.try_read(&newest, 1).unwrap_err().kind(), ErrorKind::Corrupt);
    let valid = job.store().checkpoints(Verify::Crc).unwrap();
    assert_eq!(valid[0].metadata.checkpoint, CheckpointId(3));
    job.verify();
}

/// The files of a damaged checkpoint are kept until it is older than all that are retained.
#[test]
fn damaged_checkpoints_are_kept_for_inspection_and_then_go() {
    let damage = |folder: &Path| fs::write(folder.join("chk-4/metadata.json"), b"{\"format\":").unwrap();
    let (folder, valid, mut job) = after(damage, Verify::Crc);
    assert_eq!(valid, [3, 2]);
    let parts =
        |folder: &Path| files_below(folder).into_iter().filter(|path| path.contains("-4-1.parquet")).count();
    assert!(parts(folder.path()) > 0, "what it refers to is not known, so nothing old is removed");
    job.restart(2);
    let mut random = Random::seeded(1);
    for _ in 0..3 {
        job.change(&mut random, 20);
        job.checkpoint();
        job.verify();
    }
    assert!(!folder.path().join("chk-4").exists());
    assert_eq!(parts(folder.path()), 0);
}

#[test]
fn metadata_of_a_newer_version_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let history = crashed(folder.path());
    let store = open_store(&options(Backend::Filesystem, folder.path())).unwrap();
    let newest = store.checkpoints(Verify::Crc).unwrap().remove(0).metadata;
    drop(store);
    let newer = CheckpointMetadata { format: "millpond-checkpoint/2".into(), ..newest };
    crate::metadata::write(&folder.path().join("chk-4"), &newer).unwrap();
    let error = Job::reopen(Backend::Filesystem, folder.path(), &history).map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(folder.path().join("chk-4/metadata.json").exists());
}

/// A part vanishes while the job runs: that checkpoint fails, and the table heals itself.
#[test]
fn a_part_lost_while_running_is_replaced_by_a_base() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random::seeded(9);
    let mut job = Job::open(Backend::Filesystem, folder.path(), 1);
    job.change(&mut random, 20);
    job.checkpoint();
    let part = files_below(folder.path()).into_iter().find(|path| path.contains("table=value")).unwrap();
    fs::remove_file(folder.path().join(part)).unwrap();
    job.change(&mut random, 20);
    assert_eq!(job.try_checkpoint().unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(job.store().needs_base(&model::uid(), "value", 0));
    job.checkpoint();
    job.verify();
}

/// Sinks may have committed up to it: that it is damaged does not make it forgotten, even when the
/// file that remembers is damaged as well.
#[test]
fn a_damaged_checkpoint_is_remembered_without_its_generation_file() {
    let cut_part = |folder: &Path| fs::write(part_of_newest(folder), b"PAR1").unwrap();
    let cut_metadata = |folder: &Path| fs::write(folder.join("chk-4/metadata.json"), b"{").unwrap();
    for damage in [cut_part as fn(&Path), cut_metadata] {
        let leave = |folder: &Path| {
            damage(folder);
            fs::write(folder.join("GENERATION"), b"PAR1").unwrap();
        };
        let (_folder, valid, job) = after(leave, Verify::Size);
        assert_eq!(valid, [3, 2]);
        assert_eq!(job.store().newest_completed(), CheckpointId(4));
    }
}
