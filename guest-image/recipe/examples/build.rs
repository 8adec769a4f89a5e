//! Builds an image without the rest of the product.
//!
//! `cargo run -p lazaret-image --example build -- IMAGES CACHE AGENT [LAYER…]`
#![allow(clippy::print_stdout, reason = "a tool for people at a terminal")]

use lazaret_image::{Options, Progress, build};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let mut next = || {
        words
            .next()
            .ok_or("usage: build IMAGES CACHE AGENT [LAYER…]")
    };
    let (images, cache, agent) = (next()?.into(), next()?.into(), next()?.into());
    let options = Options {
        images,
        cache,
        agent,
        layers: words.collect(),
        refresh: false,
        locked: false,
    };
    let manifest = build(&options, &mut |progress| match progress {
        Progress::Started { step, index, of } => println!("[{index}/{of}] {step}"),
        Progress::Line(line) => println!("      {line}"),
        Progress::Finished { cached, took, .. } => println!(
            "      {} {took:.1?}",
            if cached { "cached" } else { "done" }
        ),
    })?;
    println!("{}", options.images.join(&manifest.digest).display());
    Ok(())
}
