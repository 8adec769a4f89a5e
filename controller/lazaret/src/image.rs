//! `lazaret image …`: the guest image, built by the recipe and kept by digest.

mod verify;

use crate::cli::image::{Image, ImageBuild, ImageDir};
use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::output::progress::Progress;
use crate::output::table::table;
use crate::paths::Paths;
use lazaret_image::{ImageError, Manifest, Options};
use serde_json::json;
use std::path::{Path, PathBuf};

/// The guest agent's program.
const AGENT: &str = "lazaret-guest";
/// Where cargo puts it.
const GUEST_TARGET: &str = "x86_64-unknown-linux-gnu";

/// Carries out `lazaret image …`.
///
/// # Errors
/// Where an image cannot be built or the directory not be read. An image that is not well is exit 1.
pub async fn image(command: Image, out: &mut Output) -> Result<Exit, Failure> {
    match command {
        Image::Build(args) => build_command(args, out).await,
        Image::Ls(args) => ls(&args, out),
        Image::Verify(args) => verify::verify(&images_of(&args)?, out).await,
    }
}

async fn build_command(args: ImageBuild, out: &mut Output) -> Result<Exit, Failure> {
    let options = Options {
        images: images_of(&args.at)?,
        cache: match args.cache {
            Some(cache) => cache,
            None => Paths::find(args.at.data.as_deref())?.cache(),
        },
        agent: match args.agent {
            Some(agent) => agent,
            None => find_agent()?,
        },
        layers: args.layers,
        refresh: args.refresh,
        locked: args.locked,
    };
    let manifest = build(options).await?;
    if out.json {
        out.document(&manifest)?;
    } else {
        out.line(&manifest.digest)?;
    }
    Ok(Exit::Done)
}

/// The newest image; one is built where there is none.
///
/// # Errors
/// Where it cannot be built.
pub async fn ensure(paths: &Paths) -> Result<String, Failure> {
    if let Some(digest) = newest(&paths.images()) {
        // With the agent at hand the build is asked again: it costs nothing if nothing changed.
        if find_agent().is_err() {
            return Ok(digest);
        }
    }
    let options = Options {
        images: paths.images(),
        cache: paths.cache(),
        agent: find_agent()?,
        layers: Vec::new(),
        refresh: false,
        locked: false,
    };
    Ok(build(options).await?.digest)
}

/// The digest of the newest image in a directory.
#[must_use]
pub fn newest(images: &Path) -> Option<String> {
    lazaret_image::list(images)
        .ok()?
        .into_iter()
        .next()
        .map(|manifest| manifest.digest)
}

/// Checks one image, each file of it.
///
/// # Errors
/// What is wrong with it.
pub fn verify_one(images: &Path, digest: &str) -> Result<Manifest, ImageError> {
    lazaret_image::verify(&images.join(digest))
}

async fn build(options: Options) -> Result<Manifest, Failure> {
    let built = tokio::task::spawn_blocking(move || {
        let shown = Progress::start("Guest image");
        lazaret_image::build(&options, &mut |news| tell(&shown, news))
    });
    let built = built
        .await
        .map_err(|error| Failure::doing("the build of the image ended", error))?;
    built.map_err(|error| Failure::Failed(chain(&error)))
}

fn tell(shown: &Progress, news: lazaret_image::Progress) {
    match news {
        lazaret_image::Progress::Started { step, index, of } => {
            shown.step(&format!("Guest image, step {index} of {of}: {step}"));
        }
        lazaret_image::Progress::Line(line) => shown.detail(&line),
        lazaret_image::Progress::Finished { .. } => {}
    }
}

fn ls(args: &ImageDir, out: &mut Output) -> Result<Exit, Failure> {
    let images = images_of(args)?;
    let list = lazaret_image::list(&images).map_err(|error| Failure::Failed(chain(&error)))?;
    if out.json {
        let all: Vec<_> = list.iter().map(brief).collect();
        out.document(&json!({ "images": all }))?;
        return Ok(Exit::Done);
    }
    if list.is_empty() {
        out.note(format!(
            "No image in {}. Build one with: lazaret image build",
            images.display()
        ))?;
        return Ok(Exit::Done);
    }
    let rows: Vec<Vec<String>> = list
        .iter()
        .map(|image| {
            let layers = if image.layers.is_empty() {
                "-".to_owned()
            } else {
                image.layers.join(",")
            };
            vec![
                image.digest.clone(),
                image.created.clone(),
                image.kernel.clone(),
                format!("{} MiB", image.size() >> 20),
                layers,
            ]
        })
        .collect();
    out.line(table(
        &["DIGEST", "CREATED", "KERNEL", "SIZE", "LAYERS"],
        &rows,
    ))?;
    Ok(Exit::Done)
}

fn brief(image: &Manifest) -> serde_json::Value {
    json!({
        "digest": image.digest, "created": image.created, "kernel": image.kernel,
        "size": image.size(), "layers": image.layers,
    })
}

fn images_of(args: &ImageDir) -> Result<PathBuf, Failure> {
    match &args.images {
        Some(images) => std::path::absolute(images)
            .map_err(|error| Failure::doing("cannot find --images", error)),
        None => Ok(Paths::find(args.data.as_deref())?.images()),
    }
}

/// The guest agent lies where cargo put it, beside this program, or in `../lib/lazaret`. In a build
/// tree what lies beside this program is a build for tests, not the static one, so that comes later.
fn find_agent() -> Result<PathBuf, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::doing("cannot find this program", error))?;
    let dir = program.parent().unwrap_or(Path::new("/"));
    let places = [
        dir.join("..").join(GUEST_TARGET).join("guest").join(AGENT),
        dir.join(AGENT),
        dir.join("../lib/lazaret").join(AGENT),
    ];
    places.into_iter().find(|place| place.is_file()).ok_or_else(|| {
        Failure::Usage(format!(
            "the guest agent ({AGENT}) is not beside {}. Build it with 'make guest', or name it with --agent FILE.",
            program.display()
        ))
    })
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(": ");
        text.push_str(&next.to_string());
        cause = next.source();
    }
    text
}
