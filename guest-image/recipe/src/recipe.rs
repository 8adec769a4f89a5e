//! The pinned inputs, read from `recipe.toml` and the files beside it, which are part of the program.

use crate::ImageError;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The recipe as text.
pub(crate) const TEXT: &str = include_str!("../recipe.toml");

/// The versions that a locked build insists on: `name version` lines, written by `Manifest::lock`.
pub(crate) const LOCK: &str = include_str!("../recipe.lock");

/// Files of ours in the root, by their path there.
pub(crate) const FILES: [(&str, &str); 2] = [
    ("etc/pip.conf", include_str!("../rootfs/etc/pip.conf")),
    ("etc/npmrc", include_str!("../rootfs/etc/npmrc")),
];

/// What an image is made of.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Debian's release.
    pub suite: String,
    /// Where it comes from by default.
    pub mirror: String,
    /// Where its security updates come from by default.
    pub security_mirror: String,
    /// The time that every file carries.
    pub epoch: u64,
    /// The packages, beside the essential ones and apt.
    pub packages: Vec<String>,
    /// The kernel.
    pub kernel: Kernel,
    /// The optional layers by name.
    pub layers: BTreeMap<String, Layer>,
    /// What the search for credentials finds and may stay.
    pub harmless: Vec<Harmless>,
}

/// A finding that is none.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Harmless {
    /// How the path of the file begins.
    pub path: String,
    /// What is found there.
    pub what: String,
    /// Why it may stay.
    pub why: String,
}

/// Which kernel, and which of its modules the initramfs loads.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kernel {
    /// The package.
    pub package: String,
    /// The modules.
    pub modules: Vec<String>,
}

/// One program from the npm registry.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// The package.
    pub npm: String,
    /// Its exact version.
    pub version: String,
    /// The file in the package.
    pub file: String,
    /// Where it goes in the root.
    pub target: String,
}

impl Recipe {
    /// The recipe that this program was built with.
    ///
    /// # Errors
    /// It does not parse, which its test excludes.
    pub fn embedded() -> Result<Self, ImageError> {
        toml::from_str(TEXT).map_err(|error| ImageError::Recipe(error.to_string()))
    }

    /// The layers of these names, in the order of their names.
    ///
    /// # Errors
    /// There is no such layer.
    pub fn chosen_layers(&self, names: &[String]) -> Result<BTreeMap<String, Layer>, ImageError> {
        names
            .iter()
            .map(|name| match self.layers.get(name) {
                Some(layer) => Ok((name.clone(), layer.clone())),
                None => Err(ImageError::UnknownLayer(name.clone())),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recipe_parses_and_pins_its_layers() {
        let recipe = Recipe::embedded().unwrap();
        assert!(recipe.packages.is_sorted(), "packages are kept in order");
        assert!(
            recipe.chosen_layers(&["claude".into()]).unwrap()["claude"]
                .version
                .starts_with("2.1.")
        );
        assert!(
            recipe
                .harmless
                .iter()
                .all(|known| !known.why.is_empty() && known.path.len() > 10)
        );
        assert!(matches!(
            recipe.chosen_layers(&["nothing".into()]),
            Err(ImageError::UnknownLayer(_))
        ));
    }
}
