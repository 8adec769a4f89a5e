//! Files: what lies in the workspace, its bytes as attachments, and uploads.

use crate::auth::Caller;
use crate::detached::detached;
use crate::extract::{Idempotency, Segment, Segments, UploadBody, UrlQuery};
use crate::headers::BYTES_POLICY;
use crate::problem::Refusal;
use crate::state::Edge;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::http::{HeaderName, StatusCode};
use lazaret_api::public::FileList;
use lazaret_domain::{GuestPath, RunId, UploadName};
use serde::Deserialize;
use std::fmt::Write as _;
use utoipa::IntoParams;

/// Which directory is wanted.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct FilesQuery {
    /// A path below the workspace, relative. Default: the workspace itself.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    path: GuestPath,
}

/// List a directory of the workspace
#[utoipa::path(get, path = "/api/v1/runs/{run}/files", tag = "files",
    params(("run" = RunId, Path, description = "The run's id."), FilesQuery),
    responses((status = 200, description = "The entries by name.", body = FileList)))]
pub(super) async fn list_files(
    State(edge): State<Edge>,
    Caller(by): Caller,
    Segment(run): Segment<RunId>,
    UrlQuery(query): UrlQuery<FilesQuery>,
) -> Result<Json<FileList>, Refusal> {
    Ok(Json(
        edge.services.runs.files(&by, &run, &query.path).await?,
    ))
}

/// List what can be fetched, from the top of the workspace
#[utoipa::path(get, path = "/api/v1/runs/{run}/artifacts", tag = "files",
    params(("run" = RunId, Path, description = "The run's id.")),
    responses((status = 200, description = "The entries by name.", body = FileList)))]
pub(super) async fn list_artifacts(
    State(edge): State<Edge>,
    Caller(by): Caller,
    Segment(run): Segment<RunId>,
) -> Result<Json<FileList>, Refusal> {
    Ok(Json(
        edge.services
            .runs
            .files(&by, &run, &GuestPath::default())
            .await?,
    ))
}

/// Fetch a file of the workspace
///
/// At most 10 MB, always as a download of unnamed type, never as anything a browser would show.
#[utoipa::path(get, path = "/api/v1/runs/{run}/artifacts/{*path}", tag = "files",
    params(("run" = RunId, Path, description = "The run's id."),
        ("path" = String, Path, description = "A path below the workspace.")),
    responses((status = 200, description = "The bytes.", body = String, content_type = "application/octet-stream")))]
pub(super) async fn get_artifact(
    State(edge): State<Edge>,
    Caller(by): Caller,
    Segments(run, path): Segments<RunId, GuestPath>,
) -> Result<([(HeaderName, String); 3], Bytes), Refusal> {
    let file = edge.services.runs.read_file(&by, &run, &path).await?;
    let headers = [
        (CONTENT_TYPE, "application/octet-stream".to_owned()),
        (CONTENT_DISPOSITION, attachment(&file.name)),
        (CONTENT_SECURITY_POLICY, BYTES_POLICY.to_owned()),
    ];
    Ok((headers, file.bytes))
}

/// Put a file into the area that the agent can only read
#[utoipa::path(put, path = "/api/v1/runs/{run}/files/{name}", tag = "files",
    params(("run" = RunId, Path, description = "The run's id."),
        ("name" = UploadName, Path, description = "The file's name, one plain segment.")),
    request_body(content = String, content_type = "application/octet-stream", description = "The bytes, at most 96 MiB."),
    responses((status = 204, description = "It is there.")))]
pub(super) async fn put_file(
    State(edge): State<Edge>,
    Caller(by): Caller,
    Segments(run, name): Segments<RunId, UploadName>,
    _: Idempotency,
    UploadBody { bytes, held }: UploadBody,
) -> Result<StatusCode, Refusal> {
    detached(async move {
        let _held = held;
        edge.services.runs.put_file(&by, &run, &name, bytes).await
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// `Content-Disposition` by RFC 6266 and RFC 8187: a plain name for old clients, and the true one
/// percent-encoded. Whatever the guest calls its file, this is one well-formed header.
fn attachment(name: &str) -> String {
    let plain: String = name
        .chars()
        .take(100)
        .map(|c| {
            if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ' ') {
                c
            } else {
                '_'
            }
        })
        .collect();
    let mut header = format!("attachment; filename=\"{plain}\"; filename*=UTF-8''");
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"!#$&+-.^_`|~".contains(&byte) {
            header.push(char::from(byte));
        } else {
            let _ = write!(header, "%{byte:02X}");
        }
    }
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_name_makes_one_well_formed_header() {
        assert_eq!(
            attachment("report.txt"),
            "attachment; filename=\"report.txt\"; filename*=UTF-8''report.txt"
        );
        assert_eq!(
            attachment("a\"b\r\nSet-Cookie: x.html"),
            "attachment; filename=\"a_b__Set-Cookie_ x.html\"; filename*=UTF-8''a%22b%0D%0ASet-Cookie%3A%20x.html"
        );
        assert_eq!(
            attachment("é.txt"),
            "attachment; filename=\"_.txt\"; filename*=UTF-8''%C3%A9.txt"
        );
    }
}
