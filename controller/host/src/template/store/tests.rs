//! Templates as files, without any QEMU.

use super::*;
use crate::config::HostConfig;
use crate::image::Image;
use crate::vmm::{Machine, Origin};
use lazaret_api::host::Accel;
use lazaret_domain::{ByteSize, Cpus};

struct Place {
    dir: tempfile::TempDir,
    state: State,
    key: Key,
}

/// A state directory with one template, whose QEMU is a file of the test.
fn place() -> Place {
    let dir = tempfile::tempdir().unwrap();
    let qemu = dir.path().join("qemu");
    std::fs::write(&qemu, "qemu").unwrap();
    let config = HostConfig {
        qemu,
        min_free_disk: ByteSize::mebibytes(1),
        ..HostConfig::default()
    };
    let state = State::open(dir.path().join("s"), config).unwrap();
    std::fs::create_dir_all(state.images().join("i")).unwrap();
    let key = key(&state, 512);
    make(&state, &key);
    Place { dir, state, key }
}

fn key(state: &State, memory: u64) -> Key {
    let machine = Machine {
        qemu: state.config().qemu.clone(),
        image: Image {
            kernel: "k".into(),
            initrd: "i".into(),
            root: "r".into(),
        },
        accel: Accel::Tcg,
        memory: ByteSize::mebibytes(memory),
        cpus: Cpus::ONE,
        disk: None,
        probe: false,
        kernel_args: String::new(),
        origin: Origin::Boot,
    };
    Key::of(state, "i", &machine, ByteSize::mebibytes(1024)).unwrap()
}

fn make(state: &State, key: &Key) {
    let lock = lock(state).unwrap();
    let making = making(state, key);
    std::fs::create_dir_all(&making).unwrap();
    for name in FILES {
        std::fs::write(making.join(name), format!("the {name}")).unwrap();
    }
    std::fs::write(vmm::base_of(&state.disks(), key.disk), "a base").unwrap();
    publish(state, key, &lock).unwrap();
}

#[test]
fn a_template_is_found_by_its_key_alone() {
    let Place {
        state,
        key: made,
        dir: _dir,
    } = place();
    assert!(find(&state, &made).is_some());
    assert!(find(&state, &key(&state, 513)).is_none());
}

#[test]
fn a_template_that_was_altered_by_one_byte_or_cut_is_removed_and_not_used() {
    for (file, content) in [
        ("memory", "The memory"),
        ("memory", "the memor"),
        ("state", "the statf"),
        ("disk.qcow2", ""),
        ("note.json", "{}"),
    ] {
        let Place {
            state,
            key,
            dir: _dir,
        } = place();
        let dir = state.templates().join(key.name());
        std::fs::write(dir.join(file), content).unwrap();
        assert!(find(&state, &key).is_none(), "{file}: {content}");
        assert!(!dir.exists(), "{file}: {content}");
    }
    let Place {
        state,
        key,
        dir: _dir,
    } = place();
    std::fs::remove_file(find(&state, &key).unwrap().memory()).unwrap();
    assert!(find(&state, &key).is_none());
}

#[test]
fn a_file_that_only_looks_different_is_hashed_and_kept() {
    let Place {
        state,
        key,
        dir: _dir,
    } = place();
    let memory = find(&state, &key).unwrap().memory();
    let copy = memory.with_extension("copy");
    std::fs::copy(&memory, &copy).unwrap();
    std::fs::rename(&copy, &memory).unwrap();
    assert!(find(&state, &key).is_some());
}

#[test]
fn another_qemu_has_other_templates_and_the_old_ones_are_collected() {
    let Place {
        dir,
        state,
        key: old,
    } = place();
    std::fs::write(dir.path().join("qemu"), "another qemu").unwrap();
    assert!(find(&state, &key(&state, 512)).is_none());
    make(&state, &key(&state, 512));
    collect(&state);
    assert!(!state.templates().join(old.name()).exists());
    assert!(find(&state, &key(&state, 512)).is_some());
}

#[test]
fn what_a_crash_left_is_collected_unless_one_is_being_made() {
    let Place {
        state,
        key,
        dir: _dir,
    } = place();
    let left = state.templates().join(".0000000000000000");
    std::fs::create_dir_all(left.join("x")).unwrap();
    let lock = lock(&state).unwrap();
    collect(&state);
    assert!(left.exists());
    drop(lock);
    collect(&state);
    assert!(!left.exists());
    assert!(find(&state, &key).is_some());
}

#[test]
fn a_template_whose_disk_lies_over_another_base_is_removed() {
    let Place {
        state,
        key,
        dir: _dir,
    } = place();
    let base = vmm::base_of(&state.disks(), key.disk);
    std::fs::remove_file(&base).unwrap();
    assert!(find(&state, &key).is_none());
    make(&state, &key);
    let copy = base.with_extension("copy");
    std::fs::copy(&base, &copy).unwrap();
    std::fs::rename(&copy, &base).unwrap();
    assert!(find(&state, &key).is_none());
    assert!(!state.templates().join(key.name()).exists());
}

#[test]
fn who_meets_a_maker_neither_judges_nor_waits() {
    let Place {
        state,
        key,
        dir: _dir,
    } = place();
    let memory = find(&state, &key).unwrap().memory();
    std::fs::write(&memory, "The memory").unwrap();
    let lock = lock(&state).unwrap();
    assert!(find(&state, &key).is_none());
    assert!(memory.exists(), "it is judged by who holds the lock");
    drop(lock);
    assert!(find(&state, &key).is_none());
    assert!(!memory.exists());
}

#[test]
fn a_template_that_gave_no_fork_is_removed_and_its_successor_is_not() {
    let Place {
        state,
        key,
        dir: _dir,
    } = place();
    let first = find(&state, &key).unwrap();
    make(&state, &key);
    first.discard(&state);
    let second = find(&state, &key).unwrap();
    second.discard(&state);
    assert!(find(&state, &key).is_none());
}

#[test]
fn the_number_of_templates_is_bounded_and_disk_is_left_for_others() {
    let Place {
        state,
        key: first,
        dir: _dir,
    } = place();
    for memory in 513..513 + 12 {
        let key = key(&state, memory);
        make_room(&state, &key, &lock(&state).unwrap()).unwrap();
        make(&state, &key);
    }
    assert_eq!(complete(&state).count(), MOST);
    assert!(find(&state, &first).is_none(), "the oldest made room");
    let large = key(&state, 1 << 40);
    let refused = make_room(&state, &large, &lock(&state).unwrap()).unwrap_err();
    assert_eq!(refused.code, DenialCode::DiskFull);
}

#[test]
fn a_failure_is_remembered_for_a_while() {
    let Place {
        state,
        key,
        dir: _dir,
    } = place();
    assert!(!failed_lately(&state, &key));
    remember(&state, &key, true);
    assert!(failed_lately(&state, &key));
    collect(&state);
    assert!(failed_lately(&state, &key), "it is not collected at once");
    remember(&state, &key, false);
    assert!(!failed_lately(&state, &key));
}

#[test]
fn where_templates_are_turned_off_none_is_kept() {
    let Place { state, key, dir } = place();
    let config = HostConfig {
        templates: false,
        ..state.config().clone()
    };
    let state = State::open(dir.path().join("s"), config).unwrap();
    collect(&state);
    assert!(!state.templates().join(key.name()).exists());
}

#[test]
fn a_template_without_its_image_is_collected() {
    let Place {
        state,
        key,
        dir: _dir,
    } = place();
    std::fs::remove_dir_all(state.images()).unwrap();
    collect(&state);
    assert!(!state.templates().join(key.name()).exists());
}

#[test]
fn a_template_that_nobody_used_for_a_week_is_collected_and_a_use_counts() {
    let Place {
        state,
        key,
        dir: _dir,
    } = place();
    let last_used = |ago: Duration| {
        let file = File::open(state.templates().join(key.name()).join(USED)).unwrap();
        let at = std::time::SystemTime::now() - ago;
        file.set_modified(at).unwrap();
    };
    last_used(IDLE + Duration::from_secs(60));
    assert!(find(&state, &key).is_some(), "a use");
    collect(&state);
    assert!(find(&state, &key).is_some());
    last_used(IDLE + Duration::from_secs(60));
    collect(&state);
    assert!(find(&state, &key).is_none());
}
