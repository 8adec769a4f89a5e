//! What the HTTP services and the check of plain HTTP have in common: serving requests on a
//! connection with the guest, and passing a request on over another stream.

pub(super) use axum::body::Body;
use http::header::{CONNECTION, CONTENT_TYPE, HeaderMap, HeaderName, RETRY_AFTER};
use http::{HeaderValue, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use lazaret_api::public::Problem;
use lazaret_domain::Denial;
use std::convert::Infallible;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

/// The most header bytes of a request.
const MAX_HEAD: usize = 64 * 1024;
/// A request's head must come within this time after the connection or the last answer.
const HEAD: Duration = Duration::from_secs(90);

/// Headers that concern one connection, not the request. Upgrades are among them: none is passed on.
const HOP_BY_HOP: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Answers each request on a connection with the guest.
pub(super) async fn serve<S, F, R>(stream: S, answer: F)
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Fn(Request<Incoming>) -> R,
    R: Future<Output = Response<Body>>,
{
    let service = service_fn(|request| {
        let answered = answer(request);
        async { Ok::<_, Infallible>(answered.await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(MAX_HEAD)
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service);
    // A guest that breaks off, or does not speak HTTP, has had its answer from hyper. One that asked
    // for an upgrade has got an ordinary answer, but hyper leaves it to us to end the connection.
    if let Ok(parts) = connection.without_shutdown().await {
        let _ = parts.io.into_inner().shutdown().await;
    }
}

/// Sends a request over a fresh stream and gives back the answer, both bodies as they come. `ours`
/// are the headers that the other side may rely on: they replace what the guest sent under these
/// names, and nothing in the request can take them away again.
pub(super) async fn pass_on<S>(
    stream: S,
    mut request: Request<Body>,
    ours: HeaderMap,
) -> Result<Response<Incoming>, hyper::Error>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    // In this order: a guest's Connection header may name any header, also one of ours.
    drop_hop_by_hop(request.headers_mut());
    request.headers_mut().extend(ours);
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // Ends with the answer's body, or as soon as nobody waits for it any more.
    tokio::spawn(connection);
    let mut response = sender.send_request(request).await?;
    drop_hop_by_hop(response.headers_mut());
    Ok(response)
}

/// What is asked of a host, without the host: a path, byte for byte.
pub(super) fn target(uri: &Uri) -> Uri {
    match uri.path_and_query() {
        Some(path) if path.as_str() != "/" => path.clone().into(),
        // An empty one, as there is before a fragment, says that it is "/" but is sent as nothing.
        _ => Uri::from_static("/"),
    }
}

fn drop_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

/// A refusal as problem JSON.
pub(super) fn problem(status: StatusCode, denial: &Denial) -> Response<Body> {
    let title = status.canonical_reason().unwrap_or_default();
    let problem = Problem::of(denial, status.as_u16(), title);
    let json = serde_json::to_vec(&problem).unwrap_or_default();
    let mut response = Response::new(Body::from(json));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("application/problem+json"),
    );
    if let Some(seconds) = denial.retry_after {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_of_a_host_is_never_nothing() {
        for (said, sent) in [
            ("/a%2f../b?c", "/a%2f../b?c"),
            ("http://a.example", "/"),
            ("http://a.example?x", "/?x"),
            ("http://a.example/b#c", "/b"),
            ("a.example:80", "/"),
            ("*", "*"),
            // Found by the fuzzer.
            ("http://a.exam#@le/", "/"),
        ] {
            let uri: Uri = said.parse().unwrap();
            assert_eq!(target(&uri).to_string(), sent, "{said}");
        }
    }
}
