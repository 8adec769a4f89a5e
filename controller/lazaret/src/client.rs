//! The client of the public API, for the command line.
//!
//! It speaks HTTP only, follows no redirect (a redirect would carry the bearer elsewhere), and turns
//! every answer that is not a success into a [`Failure`] with the controller's own code.

mod calls;
pub mod events;
pub mod file;
mod patience;

use crate::failure::{Exit, Failure};
use bytes::Bytes;
use file::Endpoint;
use lazaret_domain::DenialCode;
use reqwest::{Method, RequestBuilder, Response, Url};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// The longest answer that is read whole: a file of 10 MB, or a page of events.
const MAX_ANSWER: usize = 64 << 20;

/// A controller, as the command line sees it.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    token: String,
}

/// The part of a problem document that is read. The code stays text: a newer controller may have
/// codes that this build does not know.
#[derive(Deserialize)]
struct WireProblem {
    code: String,
    detail: String,
    #[serde(default)]
    field: Option<String>,
    #[serde(default)]
    retry_after: Option<u32>,
}

impl Client {
    /// A client for an endpoint. Nothing is sent yet.
    ///
    /// # Errors
    /// Where the URL is not one of http or https.
    pub fn new(endpoint: &Endpoint) -> Result<Self, Failure> {
        let base = Url::parse(&endpoint.url)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
            .ok_or_else(|| {
                Failure::Usage(format!("'{}' is not an http or https URL", endpoint.url))
            })?;
        let http = http()
            .build()
            .map_err(|error| Failure::doing("cannot set up HTTP", error))?;
        Ok(Self {
            http,
            base,
            token: endpoint.token.clone(),
        })
    }

    /// The controller's address, for messages.
    #[must_use]
    pub fn url(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// A URL below the base; each segment is escaped.
    pub(crate) fn at(&self, segments: &[&str]) -> Url {
        let mut url = self.base.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(segments);
        }
        url
    }

    fn api(&self, segments: &[&str]) -> Url {
        let mut all = vec!["api", "v1"];
        all.extend(segments);
        self.at(&all)
    }

    /// A request with the bearer.
    pub(crate) fn request(&self, method: Method, url: Url) -> RequestBuilder {
        self.http.request(method, url).bearer_auth(&self.token)
    }

    /// Sends a request; an answer that is not a success is a failure.
    pub(crate) async fn send(&self, request: RequestBuilder) -> Result<Response, Failure> {
        let response = request
            .send()
            .await
            .map_err(|error| self.unreachable(&error))?;
        if response.status().is_success() {
            Ok(response)
        } else {
            Err(refusal(response).await)
        }
    }

    /// What it means that a request could not be sent or its answer not be read.
    pub(crate) fn unreachable(&self, error: &reqwest::Error) -> Failure {
        Failure::Unreachable {
            url: self.url().to_owned(),
            why: root_cause(error),
        }
    }

    async fn bytes(&self, request: RequestBuilder) -> Result<Bytes, Failure> {
        let mut response = self.send(request).await?;
        let mut body = Vec::new();
        while let Some(chunk) = response
            .chunk()
            .await
            .map_err(|error| self.unreachable(&error))?
        {
            if body.len() + chunk.len() > MAX_ANSWER {
                return Err(Failure::Failed(
                    "the controller's answer is longer than 64 MiB".into(),
                ));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body.into())
    }

    async fn json<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, Failure> {
        let body = self.bytes(request).await?;
        serde_json::from_slice(&body).map_err(|error| {
            Failure::Failed(format!(
                "{} answered something that is not of this API: {error}",
                self.url()
            ))
        })
    }
}

/// How HTTP is spoken here: TLS by rustls, no redirect followed.
pub(crate) fn http() -> reqwest::ClientBuilder {
    // The first call of the process decides; the others find it decided.
    rustls::crypto::ring::default_provider()
        .install_default()
        .ok();
    reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(Duration::from_secs(10))
        .user_agent(concat!("lazaret/", env!("CARGO_PKG_VERSION")))
}

/// The failure that an answer means which is no success.
pub(crate) async fn refusal(response: Response) -> Failure {
    let after = passes_after(&response);
    let mut failure = read_refusal(response).await;
    if let Failure::Refused { again, .. } = &mut failure {
        *again = after;
    }
    failure
}

/// After how long an answer may be another one: too many requests, or nobody behind a proxy.
fn passes_after(response: &Response) -> Option<Duration> {
    matches!(response.status().as_u16(), 429 | 502..=504).then(|| {
        let wanted = response.headers().get(reqwest::header::RETRY_AFTER);
        let seconds = wanted.and_then(|value| value.to_str().ok()?.trim().parse().ok());
        Duration::from_secs(seconds.unwrap_or(0))
    })
}

async fn read_refusal(response: Response) -> Failure {
    let status = response.status();
    let problem = response.json::<WireProblem>().await;
    let Ok(problem) = problem else {
        let exit = Exit::of_status(status.as_u16());
        return Failure::Refused {
            code: format!("http_{}", status.as_u16()),
            message: format!(
                "the answer was {status} and not of this API; is the URL that of a controller?"
            ),
            exit,
            again: None,
        };
    };
    match problem.code.parse::<DenialCode>() {
        Ok(code) => {
            let mut denial = lazaret_domain::Denial::new(code, problem.detail);
            denial.field = problem.field;
            denial.retry_after = problem.retry_after;
            denial.into()
        }
        Err(()) => Failure::Refused {
            code: problem.code,
            message: problem.detail,
            exit: Exit::of_status(status.as_u16()),
            again: None,
        },
    }
}

/// The last error of the chain, which says what really happened.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}
