use super::*;

fn machine() -> Machine {
    Machine {
        qemu: "qemu-system-x86_64".into(),
        image: Image {
            kernel: "/i/vmlinuz".into(),
            initrd: "/i/initrd".into(),
            root: "/i,x/rootfs.erofs".into(),
        },
        accel: Accel::Tcg,
        memory: ByteSize::mebibytes(512),
        cpus: Cpus::ONE,
        disk: Some("/s/disk.qcow2".into()),
        probe: false,
        kernel_args: String::new(),
        origin: Origin::Boot,
    }
}

#[test]
fn a_fork_is_the_machine_of_its_template_without_kernel_and_with_private_memory() {
    let template = Machine {
        origin: Origin::Template("/t/memory".into()),
        ..machine()
    };
    let fork = Machine {
        origin: Origin::Fork("/t/memory".into()),
        ..machine()
    };
    let (template, fork) = (line(&template), line(&fork));
    assert!(template.contains("memory-backend-file,id=ram,size=512M,share=on,mem-path=/t/memory"));
    assert!(fork.contains("memory-backend-file,id=ram,size=512M,share=off,mem-path=/t/memory"));
    assert!(template.contains("-kernel") && !template.contains("-incoming"));
    assert!(fork.ends_with("-incoming defer"), "{fork}");
    for absent in ["-kernel", "-initrd", "-append"] {
        assert!(!fork.contains(absent), "{fork}");
    }
    // The same devices in the same order.
    let devices = |line: &str| {
        line.match_indices("-device ")
            .map(|(at, _)| line[at..].split(' ').nth(1).unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(devices(&template), devices(&fork));
    assert!(devices(&fork).len() >= 5, "{fork}");
}

#[test]
fn machines_that_differ_have_different_fingerprints_and_places_do_not_matter() {
    let one = machine();
    let moved = Machine {
        disk: None,
        image: Image {
            kernel: "/elsewhere".into(),
            ..one.image.clone()
        },
        origin: Origin::Fork("/t/memory".into()),
        ..machine()
    };
    assert_eq!(one.fingerprint(), moved.fingerprint());
    let others = [
        Machine {
            memory: ByteSize::mebibytes(513),
            ..machine()
        },
        Machine {
            cpus: Cpus::try_from(2).unwrap(),
            ..machine()
        },
        Machine {
            accel: Accel::Kvm,
            ..machine()
        },
        Machine {
            kernel_args: "x".into(),
            ..machine()
        },
    ];
    assert!(
        others
            .iter()
            .all(|other| other.fingerprint() != one.fingerprint())
    );
}

fn line(machine: &Machine) -> String {
    let words = machine.arguments(Path::new("/s"));
    words
        .iter()
        .map(|word| word.to_str().unwrap())
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn the_command_line_confines_caps_and_denies() {
    let line = line(&machine());
    for part in [
        "-sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
        "-no-user-config -nodefaults",
        "pit=off",
        "-no-reboot",
        "-m 512M -object memory-backend-ram,id=ram,size=512M -global",
        "-smp 1 ",
        "-accel tcg,tb-size=64",
        "readonly=on",
        "werror=report,file=disk.qcow2",
        "mac=02:4c:5a:00:00:02,host_mtu=65000",
    ] {
        assert!(line.contains(part), "{part} is missing in {line}");
    }
    for never in ["server=on", "tap", "bridge", "hostfwd", "-netdev user"] {
        assert!(!line.contains(never), "{never} in {line}");
    }
}

#[test]
fn a_saved_machine_waits_for_its_state_and_to_be_connected_to() {
    let saved = line(&Machine {
        origin: Origin::Saved,
        ..machine()
    });
    assert!(saved.ends_with("-incoming defer") && !saved.contains("-kernel"));
    assert_eq!(saved.matches("server=on").count(), 1);
    assert!(saved.contains("id=control,server=on,wait=off,path=/s/control.sock"));
    let booted = line(&machine());
    let memory = "-object memory-backend-ram,id=ram,size=512M";
    assert!(saved.contains(memory) && booted.contains(memory));
}

#[test]
fn a_comma_in_a_path_cannot_add_an_option() {
    assert!(line(&machine()).contains("file=/i,,x/rootfs.erofs"));
}

#[test]
fn only_an_emulated_guest_is_told_the_tsc_frequency_and_lays_processes_out_alike() {
    let emulated = line(&machine());
    let with_kvm = line(&Machine {
        accel: Accel::Kvm,
        ..machine()
    });
    for word in ["tsc_early_khz=", " norandmaps"] {
        assert!(
            emulated.contains(word) && !with_kvm.contains(word),
            "{word}"
        );
    }
}

#[test]
fn a_missing_program_is_named() {
    let denial = find(Path::new("qemu-system-of-nobody")).unwrap_err();
    assert_eq!(denial.code, DenialCode::VmmMissing);
    assert!(denial.message.contains("qemu-system-of-nobody"));
}
