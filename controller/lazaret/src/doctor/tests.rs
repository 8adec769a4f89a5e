//! Each prerequisite broken in turn: the check that is named, its fix, and the exit status.

use super::*;
use jiff::Timestamp;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// A machine where all programs are there (as scripts that say nothing) and nothing is set up.
struct Machine {
    dir: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let machine = Self { dir };
        for name in [
            "qemu-system-x86_64",
            "qemu-img",
            "sshd",
            "ssh-keygen",
            "setpriv",
            "mke2fs",
            "mmdebstrap",
            "mkfs.erofs",
        ] {
            machine.program(name, "#!/bin/sh\necho \"program 1.0\"\n");
        }
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn program(&self, name: &str, text: &str) {
        let path = self.path("bin").join(name);
        std::fs::create_dir_all(self.path("bin")).unwrap();
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn around(&self, listen: &str) -> Surroundings {
        let mut settings = Settings::defaults(&self.path("data"));
        settings.listen = listen.parse().unwrap();
        Surroundings {
            programs: vec![self.path("bin")],
            paths: Paths::find(Some(&self.path("data"))).unwrap(),
            settings: Some(Ok(settings)),
            client: Environment {
                config_home: Some(self.path("config")),
                ..Environment::default()
            },
            boot: false,
        }
    }
}

fn named<'a>(report: &'a Report, name: &str) -> &'a Check {
    report
        .checks
        .iter()
        .find(|check| check.name == name)
        .unwrap_or_else(|| panic!("{name}: {report:?}"))
}

/// A port that nobody listens on now, and nobody else is given meanwhile.
const FREE: &str = "127.0.0.1:0";

#[tokio::test]
async fn each_missing_program_is_named_with_its_package() {
    for (program, package) in [
        ("qemu-system-x86_64", "qemu-system-x86"),
        ("sshd", "openssh-server"),
        ("setpriv", "util-linux"),
        ("mke2fs", "e2fsprogs"),
        ("mmdebstrap", "mmdebstrap"),
        ("mkfs.erofs", "erofs-utils"),
    ] {
        let machine = Machine::new();
        std::fs::remove_file(machine.path("bin").join(program)).unwrap();
        let report = examine(&machine.around(FREE)).await;
        let check = named(&report, program);
        assert_eq!(check.status, Status::Fail);
        assert!(check.fix.as_ref().unwrap().contains(package), "{check:?}");
        assert!(!report.ok);
    }
}

#[tokio::test]
async fn a_program_that_does_not_run_is_no_program() {
    let machine = Machine::new();
    machine.program(
        "qemu-system-x86_64",
        "#!/bin/sh\necho 'no such library' >&2\nexit 127\n",
    );
    let report = examine(&machine.around(FREE)).await;
    let check = named(&report, "qemu-system-x86_64");
    assert_eq!(check.status, Status::Fail);
    assert!(check.detail.contains("no such library"), "{check:?}");
}

#[tokio::test]
async fn a_missing_or_altered_image_is_named() {
    let machine = Machine::new();
    let report = examine(&machine.around(FREE)).await;
    assert_eq!(named(&report, "image").status, Status::Fail);
    assert!(
        named(&report, "image")
            .fix
            .as_ref()
            .unwrap()
            .contains("image build")
    );
}

#[tokio::test]
async fn a_port_that_another_program_has_is_named() {
    let machine = Machine::new();
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    // It accepts and hangs up: whatever it is, it is no controller.
    let server = std::thread::spawn(move || drop(other.accept()));
    let report = examine(&machine.around(&address.to_string())).await;
    let check = named(&report, "port");
    assert_eq!(check.status, Status::Fail, "{check:?}");
    assert!(check.detail.contains(&address.to_string()));
    server.join().unwrap();
}

#[tokio::test]
async fn settings_and_key_files_are_named_when_they_are_wrong() {
    let machine = Machine::new();
    let mut around = machine.around(FREE);
    around.settings = Some(Err(
        "lazaret.toml: host.accel: it is kvm, tcg or auto".into()
    ));
    let key = Settings::defaults(&machine.path("data")).ssh_key;
    std::fs::create_dir_all(key.parent().unwrap()).unwrap();
    std::fs::write(&key, "no key").unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    let report = examine(&around).await;
    assert!(named(&report, "settings").detail.contains("host.accel"));
    assert_eq!(named(&report, "settings").status, Status::Fail);
    assert_eq!(named(&report, "ssh-key").status, Status::Fail);
}

#[test]
fn too_little_disk_and_a_wrong_clock_are_named() {
    assert_eq!(machine::judge_disk(1 << 30, "/x").status, Status::Fail);
    assert_eq!(machine::judge_disk(5 << 30, "/x").status, Status::Warn);
    assert_eq!(
        machine::judge_disk(50 << 30, "/x").detail,
        "50.0 GiB free at /x"
    );
    let built: Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
    assert_eq!(
        machine::judge_clock("2026-01-01T00:00:00Z".parse().unwrap(), built).status,
        Status::Fail
    );
    assert_eq!(
        machine::judge_clock("2026-01-03T00:00:00Z".parse().unwrap(), built).status,
        Status::Ok
    );
}

#[tokio::test]
async fn the_document_has_its_reviewed_shape() {
    let machine = Machine::new();
    let mut report = examine(&machine.around(FREE)).await;
    // What depends on the machine that runs the test is replaced; names, order and fixes are not.
    for check in &mut report.checks {
        check.detail = check
            .detail
            .replace(&machine.dir.path().display().to_string(), "DIR");
        if matches!(check.name.as_str(), "disk" | "clock") {
            check.detail = "…".into();
            check.status = Status::Ok;
            check.fix = None;
        }
        check.fix = check
            .fix
            .take()
            .map(|fix| fix.replace(&machine.dir.path().display().to_string(), "DIR"));
    }
    insta::assert_json_snapshot!(report);
    assert!(Path::new(&machine.path("bin")).is_dir());
}

#[test]
fn the_last_line_promises_no_more_than_was_found() {
    let report = |checks: Vec<Check>| Report {
        ok: checks.iter().all(|check| check.status != Status::Fail),
        checks,
    };
    let (ok, warn) = (Check::ok("a", "x"), Check::warn("b", "x", "y"));
    let fail = Check::fail("c", "x", "y");
    for (checks, said) in [
        (vec![ok.clone()], "All is ready."),
        (
            vec![ok, warn.clone()],
            "None of 2 checks failed; see the warning.",
        ),
        (vec![warn, fail], "1 of 2 checks failed."),
    ] {
        assert_eq!(summary(&report(checks)), said);
    }
}
