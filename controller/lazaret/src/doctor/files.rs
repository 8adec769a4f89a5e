//! Files: settings, image, and the key for hosts.

use super::{Check, Surroundings};
use crate::image;
use lazaret_ssh::ClientKey;

pub(super) fn settings(around: &Surroundings) -> Check {
    match &around.settings {
        None => Check::warn(
            "settings",
            format!("there is no {} yet", around.paths.settings().display()),
            "run: lazaret up",
        ),
        Some(Ok(settings)) => Check::ok(
            "settings",
            format!("read; the controller's URL is {}", settings.url()),
        ),
        Some(Err(why)) => Check::fail("settings", why.clone(), "correct that key, or leave it out"),
    }
}

/// The newest image, re-hashed.
pub(super) fn image(around: &Surroundings) -> Check {
    let dir = around.paths.images();
    match image::newest(&dir) {
        None => Check::fail(
            "image",
            format!("there is none in {}", dir.display()),
            "run: lazaret image build",
        ),
        Some(digest) => match image::verify_one(&dir, &digest) {
            Ok(_) => Check::ok("image", format!("{digest}, each file as its manifest says")),
            Err(why) => Check::fail(
                "image",
                format!("{digest}: {why}"),
                "remove it and run: lazaret image build",
            ),
        },
    }
}

pub(super) fn client_key(around: &Surroundings) -> Check {
    let file = around.settings().ssh_key;
    if !file.exists() {
        return Check::warn(
            "ssh-key",
            format!("there is no {} yet", file.display()),
            "run: lazaret up",
        );
    }
    match ClientKey::load(&file) {
        Ok(_) => Check::ok("ssh-key", format!("{}, private", file.display())),
        Err(denial) => Check::fail(
            "ssh-key",
            denial.message,
            format!("chmod 600 {}", file.display()),
        ),
    }
}
