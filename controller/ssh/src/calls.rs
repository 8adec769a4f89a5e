//! The host API as values: each call is a method, a path made of checked names, a fence where it
//! has an effect, and a body.

use bytes::Bytes;
use http::Method;
use lazaret_api::host::{CopyInto, ExecRequest, Keep, SandboxSpec, WakeFrom};
use lazaret_domain::{Denial, DenialCode, ExecId, Fence, GuestPath, SandboxId};
use lazaret_services::ports::host_link::{Area, ByteStream};
use std::fmt::Write as _;
use std::time::Duration;

/// How long falling asleep or waking may take.
const REST: Duration = Duration::from_secs(120);

/// What goes along with a call.
pub enum Body {
    /// Bytes that can be sent again if the connection breaks before an answer.
    Bytes(Bytes),
    /// Bytes that are only there once.
    Stream(ByteStream),
}

/// One request of the host API.
pub struct Call {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) fence: Option<Fence>,
    pub(crate) json: bool,
    pub(crate) body: Body,
    /// How long the host is asked to hold the answer back.
    pub(crate) wait: Duration,
}

impl Call {
    fn new(method: Method, path: String) -> Self {
        Self {
            method,
            path,
            fence: None,
            json: false,
            body: Body::Bytes(Bytes::new()),
            wait: Duration::ZERO,
        }
    }

    fn get(path: String) -> Self {
        Self::new(Method::GET, path)
    }

    fn fenced(mut self, fence: Fence) -> Self {
        self.fence = Some(fence);
        self
    }

    fn with_json<T: serde::Serialize>(mut self, value: &T) -> Result<Self, Denial> {
        let body = serde_json::to_vec(value).map_err(|error| {
            Denial::new(
                DenialCode::Internal,
                format!("a request could not be written: {error}"),
            )
        })?;
        self.body = Body::Bytes(body.into());
        self.json = true;
        Ok(self)
    }

    /// The same call once more, if its body can be sent again.
    pub(crate) fn again(&self) -> Option<Self> {
        let Body::Bytes(bytes) = &self.body else {
            return None;
        };
        Some(Self {
            method: self.method.clone(),
            path: self.path.clone(),
            fence: self.fence,
            json: self.json,
            body: Body::Bytes(bytes.clone()),
            wait: self.wait,
        })
    }

    /// Asks for nothing but an answer in our generation of the protocol.
    #[must_use]
    pub fn ping() -> Self {
        Self::get("/v1/ping".to_owned())
    }

    /// `GET /v1/info`
    #[must_use]
    pub fn info() -> Self {
        Self::get("/v1/info".to_owned())
    }

    /// `GET /v1/sandboxes`
    #[must_use]
    pub fn sandboxes() -> Self {
        Self::get("/v1/sandboxes".to_owned())
    }

    /// `PUT /v1/sandboxes/{id}`
    ///
    /// # Errors
    /// `internal` if the specification has no JSON form.
    pub fn create(fence: Fence, id: &SandboxId, spec: &SandboxSpec) -> Result<Self, Denial> {
        Self::new(Method::PUT, sandbox(id))
            .fenced(fence)
            .with_json(spec)
    }

    /// `GET /v1/sandboxes/{id}`
    #[must_use]
    pub fn inspect(id: &SandboxId) -> Self {
        Self::get(sandbox(id))
    }

    /// `GET /v1/sandboxes/{id}?until=settled`
    #[must_use]
    pub fn settled(id: &SandboxId, wait: Duration) -> Self {
        let mut call = Self::get(format!(
            "{}?until=settled&wait_ms={}",
            sandbox(id),
            wait.as_millis()
        ));
        call.wait = wait;
        call
    }

    /// `DELETE /v1/sandboxes/{id}`
    #[must_use]
    pub fn destroy(fence: Fence, id: &SandboxId) -> Self {
        Self::new(Method::DELETE, sandbox(id)).fenced(fence)
    }

    /// `POST …/sleep`: saving the memory takes a while.
    #[must_use]
    pub fn sleep(fence: Fence, id: &SandboxId) -> Self {
        let mut call = Self::new(Method::POST, format!("{}/sleep", sandbox(id))).fenced(fence);
        call.wait = REST;
        call
    }

    /// `POST …/wake?from=`
    #[must_use]
    pub fn wake(fence: Fence, id: &SandboxId, from: WakeFrom) -> Self {
        let from = match from {
            WakeFrom::Memory => "memory",
            WakeFrom::Disk => "disk",
        };
        let path = format!("{}/wake?from={from}", sandbox(id));
        let mut call = Self::new(Method::POST, path).fenced(fence);
        call.wait = REST;
        call
    }

    /// `POST …/copies`
    ///
    /// # Errors
    /// `internal` if that has no JSON form.
    pub fn copies(fence: Fence, id: &SandboxId, copies: &[SandboxId]) -> Result<Self, Denial> {
        let wanted = CopyInto {
            copies: copies.to_vec(),
        };
        let mut call = Self::new(Method::POST, format!("{}/copies", sandbox(id)))
            .fenced(fence)
            .with_json(&wanted)?;
        call.wait = REST;
        Ok(call)
    }

    /// `PUT …/keep`
    ///
    /// # Errors
    /// `internal` if that has no JSON form.
    pub fn keep(fence: Fence, id: &SandboxId, keep: bool) -> Result<Self, Denial> {
        Self::new(Method::PUT, format!("{}/keep", sandbox(id)))
            .fenced(fence)
            .with_json(&Keep { keep })
    }

    /// `PUT …/execs/{exec}`
    ///
    /// # Errors
    /// `internal` if the request has no JSON form.
    pub fn start_exec(
        fence: Fence,
        id: &SandboxId,
        exec: &ExecId,
        request: &ExecRequest,
    ) -> Result<Self, Denial> {
        Self::new(Method::PUT, exec_path(id, exec))
            .fenced(fence)
            .with_json(request)
    }

    /// `GET …/execs/{exec}`
    #[must_use]
    pub fn exec(id: &SandboxId, exec: &ExecId) -> Self {
        Self::get(exec_path(id, exec))
    }

    /// `GET …/execs/{exec}/output`
    #[must_use]
    pub fn output(id: &SandboxId, exec: &ExecId, offset: u64, follow: bool) -> Self {
        Self::get(format!(
            "{}/output?offset={offset}&follow={follow}",
            exec_path(id, exec)
        ))
    }

    /// `DELETE …/execs/{exec}`
    #[must_use]
    pub fn cancel_exec(fence: Fence, id: &SandboxId, exec: &ExecId) -> Self {
        Self::new(Method::DELETE, exec_path(id, exec)).fenced(fence)
    }

    /// `GET …/list`
    #[must_use]
    pub fn list_files(id: &SandboxId, path: &GuestPath) -> Self {
        Self::get(format!(
            "{}/list?path={}",
            sandbox(id),
            query_value(path.as_str())
        ))
    }

    /// `GET …/files`
    #[must_use]
    pub fn read_tar(id: &SandboxId, path: &GuestPath) -> Self {
        Self::get(format!(
            "{}/files?path={}",
            sandbox(id),
            query_value(path.as_str())
        ))
    }

    /// `PUT …/files`
    #[must_use]
    pub fn write_tar(
        fence: Fence,
        id: &SandboxId,
        area: Area,
        path: &GuestPath,
        tar: ByteStream,
    ) -> Self {
        let area = match area {
            Area::Workspace => "workspace",
            Area::Uploads => "uploads",
        };
        let path = format!(
            "{}/files?path={}&area={area}",
            sandbox(id),
            query_value(path.as_str())
        );
        let mut call = Self::new(Method::PUT, path).fenced(fence);
        call.body = Body::Stream(tar);
        call
    }

    /// `GET …/console`
    #[must_use]
    pub fn console(id: &SandboxId) -> Self {
        Self::get(format!("{}/console", sandbox(id)))
    }

    /// `GET …/egress`
    #[must_use]
    pub fn egress(id: &SandboxId, after: u64) -> Self {
        Self::get(format!("{}/egress?after={after}", sandbox(id)))
    }
}

fn sandbox(id: &SandboxId) -> String {
    format!("/v1/sandboxes/{id}")
}

fn exec_path(id: &SandboxId, exec: &ExecId) -> String {
    format!("/v1/sandboxes/{id}/execs/{exec}")
}

/// A text as the value of a query field: all but unreserved characters and `/` percent-encoded.
fn query_value(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id() -> SandboxId {
        "s0123456789abcdef".parse().unwrap()
    }

    #[test]
    fn a_path_in_the_workspace_cannot_add_a_query_field() {
        let path: GuestPath = "a&area=uploads#x?y=%2e%2e/ü b".parse().unwrap();
        let call = Call::read_tar(&id(), &path);
        assert_eq!(
            call.path,
            "/v1/sandboxes/s0123456789abcdef/files?path=a%26area%3Duploads%23x%3Fy%3D%252e%252e/%C3%BC%20b"
        );
    }

    proptest! {
        /// Whatever text gets through the door as a name, the request's path has exactly the
        /// segments that were meant, and is a valid URI.
        #[test]
        fn accepted_names_never_change_the_shape_of_a_request(
            exec in "\\PC{0,40}|[A-Za-z0-9_./%?#&;$`'\" \\n\\\\-]{0,40}",
            path in "\\PC{0,60}|[A-Za-z0-9_./%?#&;$`'\" -]{0,60}",
        ) {
            if let Ok(exec) = exec.parse::<ExecId>() {
                let call = Call::exec(&id(), &exec);
                let uri: http::Uri = call.path.parse().unwrap();
                prop_assert_eq!(uri.path().split('/').count(), 6);
                prop_assert!(uri.query().is_none());
            }
            if let Ok(path) = path.parse::<GuestPath>() {
                let call = Call::list_files(&id(), &path);
                let uri: http::Uri = call.path.parse().unwrap();
                prop_assert_eq!(uri.path(), "/v1/sandboxes/s0123456789abcdef/list");
                prop_assert_eq!(uri.query().unwrap().matches(['&', '=']).count(), 1);
            }
        }
    }
}
