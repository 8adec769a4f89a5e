//! The account a host runs as.

use super::LocalError;
use super::tool::{GETENT, ID, USERADD, USERMOD};
use std::path::Path;
use std::time::Duration;

/// The user database is locked while any other program changes it; it is tried so often again.
const LOCK_TRIES: u32 = 40;
/// After so long each time.
const LOCK_PAUSE: Duration = Duration::from_millis(250);

/// An account of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: u32,
    /// Its primary gid.
    pub gid: u32,
}

impl Account {
    /// Whether it is the one this process runs as.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        rustix::process::geteuid().as_raw() == self.uid
    }
}

/// Finds the account, or makes it when started by root. Anyone but root gets their own account.
pub(super) async fn ensure(name: &str) -> Result<Account, LocalError> {
    let uid = rustix::process::geteuid();
    if !uid.is_root() {
        return lookup(&uid.as_raw().to_string())
            .await?
            .ok_or_else(|| LocalError::Account {
                name: uid.as_raw().to_string(),
                why: "the running user has no entry in the user database".to_owned(),
            });
    }
    let refuse = |why: &str| LocalError::Account {
        name: name.to_owned(),
        why: why.to_owned(),
    };
    if !is_account_name(name) {
        return Err(refuse(
            "a name is 1 to 32 characters of a-z 0-9 _ - and starts with a letter",
        ));
    }
    if lookup(name).await?.is_none() {
        make(name).await?;
    }
    let account = lookup(name)
        .await?
        .ok_or_else(|| refuse("it was made and is not there"))?;
    if account.uid == 0 {
        return Err(refuse("it is root"));
    }
    let groups = ID.run(["-Gn", "--", name]).await?.stdout;
    let beyond = beyond(&groups, name);
    if !beyond.is_empty() {
        return Err(refuse(&format!(
            "sandboxes must run with no rights beyond kvm's, and it is also in {}; take it out of there or name another account",
            beyond.join(", ")
        )));
    }
    if Path::new("/dev/kvm").exists() && GETENT.ask(["group", "kvm"]).await?.success {
        USERMOD.run(["--append", "--groups", "kvm", name]).await?;
    }
    Ok(account)
}

/// The groups of an account that give it more than a host needs: all but its own and kvm.
fn beyond<'a>(groups: &'a str, account: &str) -> Vec<&'a str> {
    groups
        .split_whitespace()
        .filter(|group| *group != account && *group != "kvm")
        .collect()
}

/// A password that is `*` matches nothing, yet the account is not locked: sshd lets no locked
/// account in, not even with a key. Its shell only ever starts the forced command.
async fn make(name: &str) -> Result<(), LocalError> {
    let args = [
        "--system",
        "--user-group",
        "--no-create-home",
        "--home-dir",
        "/",
        "--shell",
        "/bin/sh",
        "--password",
        "*",
        "--comment",
        "Lazaret host",
        name,
    ];
    let mut made = USERADD.ask(args).await?;
    for _ in 0..LOCK_TRIES {
        if !made.stderr.contains("cannot lock") {
            break;
        }
        tokio::time::sleep(LOCK_PAUSE).await;
        made = USERADD.ask(args).await?;
    }
    // Someone else may have made it meanwhile; the look-up that follows decides.
    if made.success || made.stderr.contains("already exists") {
        Ok(())
    } else {
        Err(LocalError::Account {
            name: name.to_owned(),
            why: format!("useradd: {}", made.stderr),
        })
    }
}

async fn lookup(key: &str) -> Result<Option<Account>, LocalError> {
    let said = GETENT.ask(["passwd", key]).await?;
    Ok(if said.success {
        parse(&said.stdout)
    } else {
        None
    })
}

fn parse(line: &str) -> Option<Account> {
    let mut fields = line.trim_end().split(':');
    let name = fields.next().filter(|name| !name.is_empty())?.to_owned();
    let uid = fields.nth(1)?.parse().ok()?;
    let gid = fields.next()?.parse().ok()?;
    Some(Account { name, uid, gid })
}

fn is_account_name(name: &str) -> bool {
    (1..=32).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_of_the_user_database_is_read_by_its_fields() {
        let account = parse("lazaret:*:998:997:Lazaret host:/:/bin/sh\n").unwrap();
        assert_eq!(
            account,
            Account {
                name: "lazaret".into(),
                uid: 998,
                gid: 997
            }
        );
        for line in ["", ":", "a:b", "a:b:c:d", "a:x:-1:0", ":x:1:1"] {
            assert_eq!(parse(line), None, "{line:?}");
        }
    }

    #[test]
    fn groups_that_give_more_rights_are_named() {
        assert_eq!(
            beyond("lazaret kvm docker sudo\n", "lazaret"),
            ["docker", "sudo"]
        );
        assert_eq!(beyond("root", "lazaret"), ["root"]);
        assert!(beyond("lazaret\n", "lazaret").is_empty());
        assert!(beyond("kvm lazaret", "lazaret").is_empty());
    }

    #[tokio::test]
    async fn an_account_that_is_there_and_may_more_is_refused() {
        // Every Debian has these two: one is in a group that is not its own, one is root.
        if !rustix::process::geteuid().is_root() {
            return;
        }
        for (name, group) in [("sync", "nogroup"), ("root", "root")] {
            let error = ensure(name).await.unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(group), "{error}");
        }
    }

    #[test]
    fn an_account_name_cannot_be_an_option_or_a_path() {
        for name in ["", "-r", "Root", "a b", "a/b", "1a", "a:b", &"a".repeat(33)] {
            assert!(!is_account_name(name), "{name:?}");
        }
        assert!(is_account_name("lazaret") && is_account_name("lz-test_1"));
    }
}
