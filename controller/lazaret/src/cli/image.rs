//! `lazaret image …`.

use super::Json;
use clap::{Args, Subcommand, ValueHint};
use std::path::PathBuf;

/// `lazaret image …`.
#[derive(Debug, Subcommand)]
pub enum Image {
    /// Builds the image; what is there already is not built again
    Build(ImageBuild),
    /// Lists the images that are there
    Ls(ImageDir),
    /// Checks each file of the images against its manifest, and searches them for credentials
    Verify(ImageDir),
}

/// `lazaret image build`.
#[derive(Debug, Args)]
pub struct ImageBuild {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub at: ImageDir,
    /// The guest agent [default: beside this program, or where cargo puts it]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub agent: Option<PathBuf>,
    /// Where the results of steps are kept [default: 'cache' in the data directory]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub cache: Option<PathBuf>,
    /// Add an optional layer; can be given again
    #[arg(long = "layer", value_name = "NAME")]
    pub layers: Vec<String>,
    /// Ask for packages anew instead of taking them from the cache
    #[arg(long)]
    pub refresh: bool,
    /// Refuse packages other than those in the lock
    #[arg(long)]
    pub locked: bool,
}

/// Where images are.
#[derive(Debug, Args)]
pub struct ImageDir {
    /// Where 'lazaret up' keeps everything
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub data: Option<PathBuf>,
    /// Where images are kept [default: 'images' in the data directory]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with = "data")]
    pub images: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub json: Json,
}
