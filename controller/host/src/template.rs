//! Templates: a booted, warmed guest, frozen, that sandboxes are forked from instead of booted.
//!
//! ```text
//!   key (image, size, accelerator, QEMU, boot of the host …)
//!    │
//!    ├─ find ──► found, and as it was made ──► a fork maps `memory` privately, copies `disk`, loads `state`
//!    │
//!    └─ build: boot sealed · warm · freeze ──► `.KEY/` ──rename──► `KEY/`
//! ```
//!
//! A template belongs to no sandbox: it was never adopted, holds no task and no credential, and its
//! network card was plugged into nothing. QEMU does not notice most differences between the machine
//! that was frozen and the one that loads it, so everything that matters is in the key, and a
//! template whose files were touched is removed and made anew.

mod build;
mod key;
mod store;

pub(crate) use build::ensure;
pub(crate) use key::Key;
pub(crate) use store::{Template, collect, collect_cage, find};
