//! The guest image: what is in it, how it is built, and how it is checked.
//!
//! ```text
//!  recipe.toml ─► packages ─┐
//!                 layers  ──┴► root (erofs) ─┐
//!                 kernel ──┬─► vmlinuz ──────┼─► manifest ─► images/<digest>/
//!  lazaret-guest ──────────┴─► initrd ───────┘
//! ```
//!
//! Each step is kept in a cache under a digest of everything that went into it, so a second build
//! is instant and a changed guest agent costs one new initramfs. An image appears under its digest
//! by a rename, whole or not at all. The digest is one of the content alone: the same files give the
//! same digest, whenever and by whomever they were made.
//!
//! | module | role |
//! | --- | --- |
//! | [`build()`] | the steps in their order |
//! | [`manifest`] | what an image says about itself |
//! | [`verify`](mod@verify) | whether that is true |
//! | [`recipe`] | the pinned inputs |
//! | [`scan`] | no credential gets into an image |
#![forbid(unsafe_code)]

mod build;
mod cache;
mod cpio;
mod digest;
mod error;
pub mod manifest;
pub mod recipe;
pub mod scan;
mod tools;
pub mod verify;

pub use build::{Options, Progress, build};
pub use error::ImageError;
pub use manifest::Manifest;
pub use verify::{list, scan_image, verify};
