//! A plain HTTP client of the public API: what any caller could use.

use anyhow::Context;
use bytes::Bytes;
use lazaret_api::public::Problem;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Talks to one controller with one key, or none.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    token: Option<String>,
}

/// An answer, read whole.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: http::HeaderMap,
    /// The body.
    pub body: Bytes,
}

impl Answer {
    /// The body as a value; the answer must be a success.
    ///
    /// # Errors
    /// With the body, if it is no success or not of that form.
    pub fn ok<T: DeserializeOwned>(&self) -> anyhow::Result<T> {
        anyhow::ensure!(
            (200..300).contains(&self.status),
            "the controller answered {}: {}",
            self.status,
            self.text()
        );
        serde_json::from_slice(&self.body).with_context(|| format!("read {}", self.text()))
    }

    /// The refusal; the answer must be one, as a problem document.
    ///
    /// # Errors
    /// With the body, if it is not.
    pub fn problem(&self) -> anyhow::Result<Problem> {
        let kind = self
            .headers
            .get("content-type")
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        anyhow::ensure!(
            kind == "application/problem+json",
            "the controller answered {} {kind}",
            self.status
        );
        let problem: Problem =
            serde_json::from_slice(&self.body).with_context(|| format!("read {}", self.text()))?;
        anyhow::ensure!(
            problem.status == self.status,
            "the problem says {} and the answer {}",
            problem.status,
            self.status
        );
        Ok(problem)
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Client {
    /// A client of the controller at that URL.
    ///
    /// # Errors
    /// If no HTTP client can be made.
    pub fn new(base: &str, token: Option<String>) -> anyhow::Result<Self> {
        // The peers speak plain HTTP on loopback; the TLS client is made all the same and needs to
        // know with what. A second call changes nothing.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .build()?;
        Ok(Self {
            http,
            base: base.to_owned(),
            token,
        })
    }

    /// The same client with another key.
    #[must_use]
    pub fn with_token(&self, token: impl Into<String>) -> Self {
        Self {
            token: Some(token.into()),
            ..self.clone()
        }
    }

    /// A request to be filled in further; the key is in it.
    pub fn request(&self, method: http::Method, path: &str) -> reqwest::RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.base));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// Sends a request and reads the answer whole, whatever its status.
    ///
    /// # Errors
    /// If the controller cannot be reached.
    pub async fn send(&self, request: reqwest::RequestBuilder) -> anyhow::Result<Answer> {
        let response = request.send().await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Ok(Answer {
            status,
            headers,
            body: response.bytes().await?,
        })
    }

    /// `GET`.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub async fn get(&self, path: &str) -> anyhow::Result<Answer> {
        self.send(self.request(http::Method::GET, path)).await
    }

    /// `DELETE`.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub async fn delete(&self, path: &str) -> anyhow::Result<Answer> {
        self.send(self.request(http::Method::DELETE, path)).await
    }

    /// `POST` with a JSON body.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub async fn post<T: Serialize + Sync>(&self, path: &str, body: &T) -> anyhow::Result<Answer> {
        self.send(self.request(http::Method::POST, path).json(body))
            .await
    }

    /// `PUT` with bytes.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub async fn put(&self, path: &str, body: impl Into<Bytes> + Send) -> anyhow::Result<Answer> {
        let request = self
            .request(http::Method::PUT, path)
            .header("content-type", "application/octet-stream");
        self.send(request.body(body.into())).await
    }
}
