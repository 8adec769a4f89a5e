//! Plain HTTP to an allowed host: every request on the connection must be for that host.
//!
//! The gateway reads each request, not only the first, so neither keep-alive nor pipelining, nor an
//! upgrade to another protocol, leads past the check. Each request gets a connection of its own, to
//! an address that was judged for it.

use super::flow::Surroundings;
use super::forward::{self, Body, pass_on, problem};
use super::stream::GuestStream;
use http::header::HOST;
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use lazaret_domain::egress::{DomainName, Permit};
use lazaret_domain::{Denial, DenialCode};

/// Serves a connection to port 80 of an allowed host. Each request that is refused or comes to
/// nothing has a record of its own; what the connection moved is in the connection's.
pub(super) async fn serve(stream: GuestStream, permit: &Permit, around: &Surroundings) {
    forward::serve(stream, |request| answer(request, permit, around)).await;
}

async fn answer(
    request: Request<Incoming>,
    permit: &Permit,
    around: &Surroundings,
) -> Response<Body> {
    let refuse = |reason: &str| {
        around
            .log
            .refuse("tcp", permit.host(), Some(permit.port()), &reason);
        problem(
            StatusCode::FORBIDDEN,
            &Denial::new(DenialCode::EgressDenied, reason),
        )
    };
    let fail = |why: &str| {
        let reason = format!("{}; {why}", permit.rule());
        around
            .log
            .allow("tcp", permit.host(), Some(permit.port()), &reason);
        problem(
            StatusCode::BAD_GATEWAY,
            &Denial::new(DenialCode::HostUnreachable, why),
        )
    };
    let (request, ours) = match for_host(request, permit.host()) {
        Ok(checked) => checked,
        Err(reason) => return refuse(reason),
    };
    let upstream = match around.outside.dial(permit).await {
        Ok(upstream) => upstream,
        Err(error) if error.is_refusal() => return refuse(&error.to_string()),
        Err(error) => return fail(&error.to_string()),
    };
    match pass_on(upstream, request.map(Body::new), ours).await {
        Ok(response) => response.map(Body::new),
        Err(_) => fail("the host did not answer in HTTP"),
    }
}

/// The request as it goes to this host, with the headers that are ours; or why it does not. What was
/// checked is what is sent: the host by its one name, and the path byte for byte.
pub(super) fn for_host<B>(
    mut request: Request<B>,
    host: &DomainName,
) -> Result<(Request<B>, HeaderMap), &'static str> {
    check(&request, host)?;
    *request.uri_mut() = forward::target(request.uri());
    let host =
        HeaderValue::from_str(host.as_str()).map_err(|_| "the host's name cannot be sent")?;
    Ok((request, HeaderMap::from_iter([(HOST, host)])))
}

/// Whether a request is for this host, wherever it says so.
fn check<B>(request: &Request<B>, host: &DomainName) -> Result<(), &'static str> {
    let is_host = |authority: &Authority| {
        !authority.as_str().contains('@')
            && authority.port_u16().unwrap_or(80) == 80
            && authority
                .host()
                .parse::<DomainName>()
                .is_ok_and(|name| name == *host)
    };
    if request.method() == Method::CONNECT {
        return Err("CONNECT is not passed on");
    }
    if request
        .uri()
        .authority()
        .is_some_and(|authority| !is_host(authority))
    {
        return Err("the request is for another host than the connection");
    }
    if request
        .uri()
        .scheme_str()
        .is_some_and(|scheme| scheme != "http")
    {
        return Err("the request is for another scheme than http");
    }
    let mut hosts = request.headers().get_all(HOST).iter();
    let said = hosts
        .next()
        .and_then(|value| Authority::try_from(value.as_bytes()).ok());
    match (said, hosts.next()) {
        (Some(authority), None) if is_host(&authority) => Ok(()),
        (Some(_), None) => Err("the Host header names another host than the connection"),
        _ => Err("the request must have one Host header"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t41_a_request_must_name_the_host_everywhere_it_names_one() {
        let host: DomainName = "example.com".parse().unwrap();
        let judge = |target: &str, hosts: &[&str]| {
            let mut request = Request::builder().uri(target);
            for host in hosts {
                request = request.header(HOST, *host);
            }
            check(&request.body(()).unwrap(), &host).is_ok()
        };
        assert!(
            judge("/", &["example.com"])
                && judge("/", &["Example.com:80"])
                && judge("http://example.com/a", &["example.com"])
        );
        for hosts in [
            &["other.com"][..],
            &[],
            &["example.com", "example.com"],
            &["example.com:443"],
            &["user@example.com"],
            &["example.com."],
            &["1.2.3.4"],
            &[""],
            &["example.com other.com"],
        ] {
            assert!(!judge("/", hosts), "{hosts:?}");
        }
        assert!(!judge("http://other.com/", &["example.com"]));
        assert!(!judge("http://user@example.com/", &["example.com"]));
        assert!(!judge("https://example.com/", &["example.com"]));
        assert!(!judge("http://example.com:8080/", &["example.com"]));
    }
}
