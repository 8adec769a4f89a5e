//! The steps of a build, in their order.

mod assemble;
mod initrd;
mod kernel;
mod layers;
mod packages;
mod root;
mod sources;

use crate::cache::{Cache, Entry};
use crate::manifest::Manifest;
use crate::recipe::Recipe;
use crate::{ImageError, tools};
use sources::Sources;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What to build, and where.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where images lie; the new one becomes `<digest>/` in it.
    pub images: PathBuf,
    /// Where the results of steps are kept.
    pub cache: PathBuf,
    /// The guest agent: a static program.
    pub agent: PathBuf,
    /// The optional layers to add, by name.
    pub layers: Vec<String>,
    /// Ask Debian and npm again, instead of taking what is in the cache.
    pub refresh: bool,
    /// Refuse packages other than those in the lock.
    pub locked: bool,
}

/// What a build is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A step begins.
    Started {
        /// Its name, for people.
        step: String,
        /// Its place, from 1.
        index: usize,
        /// How many there are.
        of: usize,
    },
    /// A line of the program that does the step.
    Line(String),
    /// The step is done.
    Finished {
        /// Its name.
        step: String,
        /// Whether its result was there already.
        cached: bool,
        /// How long it took.
        took: Duration,
    },
}

/// Builds an image, or finds that it is there.
///
/// # Errors
/// A tool is missing or failed, an input is not usable, or the image holds a credential.
pub fn build(
    options: &Options,
    progress: &mut dyn FnMut(Progress),
) -> Result<Manifest, ImageError> {
    let recipe = Recipe::embedded()?;
    let layers = recipe.chosen_layers(&options.layers)?;
    initrd::check_agent(&options.agent)?;
    let cache = Cache::open(&options.cache)?;
    let sources = Sources::of_this_machine(&recipe)?;
    let mut steps = Steps {
        index: 0,
        of: 5 + layers.len(),
        progress,
    };

    let packages = steps.run("Debian packages", |line| {
        packages::step(&cache, &recipe, &sources, options.refresh, line)
    })?;
    let kernel = steps.run("kernel", |line| {
        kernel::step(&cache, &recipe, &sources, options.refresh, line)
    })?;
    let mut layer_results = Vec::new();
    for (name, layer) in &layers {
        let result = steps.run(&format!("layer {name}"), |line| {
            layers::step(&cache, name, layer, line)
        })?;
        layer_results.push((name.clone(), layer.clone(), result));
    }
    let root = steps.run("root file system", |line| {
        root::step(&cache, &recipe, &packages, &layer_results, line)
    })?;
    let initrd = steps.run("initramfs", |_| {
        initrd::step(&cache, &recipe, &kernel, &options.agent)
    })?;
    let mut manifest = None;
    steps.run("manifest", |_| {
        let parts = assemble::Parts {
            kernel: &kernel,
            root: &root,
            initrd: &initrd,
            layers: &layers,
        };
        let (made, entry) = assemble::assemble(options, &parts)?;
        manifest = Some(made);
        Ok(entry)
    })?;
    manifest.ok_or_else(|| ImageError::Recipe("no manifest was made".into()))
}

/// Tells of each step as it begins and ends.
struct Steps<'a> {
    index: usize,
    of: usize,
    progress: &'a mut dyn FnMut(Progress),
}

impl Steps<'_> {
    fn run(
        &mut self,
        step: &str,
        work: impl FnOnce(&mut dyn FnMut(&str)) -> Result<Entry, ImageError>,
    ) -> Result<Entry, ImageError> {
        self.index += 1;
        let started = Instant::now();
        (self.progress)(Progress::Started {
            step: step.to_owned(),
            index: self.index,
            of: self.of,
        });
        let result = work(&mut |line| (self.progress)(Progress::Line(line.to_owned())))?;
        let took = started.elapsed();
        (self.progress)(Progress::Finished {
            step: step.to_owned(),
            cached: result.cached,
            took,
        });
        Ok(result)
    }
}
