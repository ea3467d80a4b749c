//! One serve: its address, and the calls that go to it.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Client, Response, StatusCode, Url};
use serde::Serialize;
use serde_json::Value;

use super::fault::{Fault, causes};

/// How long a serve may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);
/// An error body that is longer is no error of sglang's.
const LONGEST_ERROR: usize = 64 << 10;
/// What the other endpoints answer fits in this many times over.
const LONGEST_ANSWER: usize = 4 << 20;
/// An abort that is not answered by then is of no use any more.
const ABORT_TIMEOUT: Duration = Duration::from_secs(10);

/// The client side of one serve. Cheap to clone.
#[derive(Clone)]
pub(super) struct Serve {
    url: Url,
    /// For generations: a connection each, as long as they take.
    calls: Client,
    /// For everything else, so that no cancel waits for a generation's connection.
    control: Client,
}

/// Why an address cannot be that of a serve.
#[derive(Debug, thiserror::Error)]
#[error("the serve address {url:?} is wrong: {reason}; give --serve-url an address like http://127.0.0.1:30000")]
pub struct ServeUrlError {
    /// As given, but for what may be a password.
    url: String,
    reason: String,
}

/// What a control endpoint answered.
#[derive(Debug)]
pub(super) enum Answer {
    /// With status 200.
    Ok(Value),
    /// With another status.
    Status(StatusCode),
    /// Not in time.
    Timeout,
    /// Not at all: refused, reset.
    Unreachable(String),
}

impl Answer {
    pub(super) fn ok(self) -> Option<Value> {
        if let Self::Ok(value) = self { Some(value) } else { None }
    }
}

impl Serve {
    /// A serve at `url`, which wants this key where it was started with one.
    pub(super) fn new(url: &str, api_key: Option<&str>) -> Result<Self, ServeUrlError> {
        let wrong = |reason: String| ServeUrlError { url: without_user(url), reason };
        let mut parsed = Url::parse(url).map_err(|error| wrong(error.to_string()))?;
        if !matches!(parsed.scheme(), "http" | "https") || parsed.host().is_none() {
            return Err(wrong("it is no http address of a host".into()));
        }
        // Endpoints are joined to it.
        if !parsed.path().ends_with('/') {
            parsed.set_path(&format!("{}/", parsed.path()));
        }
        let mut headers = HeaderMap::new();
        if let Some(key) = api_key {
            let value = HeaderValue::from_str(&format!("Bearer {key}"));
            let mut value = value.map_err(|_| wrong("its key has characters that no header can carry".into()))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        // A serve is silent while it reads a prompt, for minutes: whoever calls bounds the whole request, nothing else does.
        let client = || {
            Client::builder()
                .no_proxy()
                .redirect(reqwest::redirect::Policy::none())
                .connect_timeout(CONNECT_TIMEOUT)
                .tcp_nodelay(true)
                .default_headers(headers.clone())
                .build()
                .map_err(|error| wrong(causes(&error)))
        };
        Ok(Self { url: parsed, calls: client()?, control: client()? })
    }

    /// Its address, for messages: without what may be a password.
    pub(super) fn name(&self) -> String {
        let host = self.url.host_str().unwrap_or_default();
        match self.url.port_or_known_default() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        }
    }

    /// Whether it runs on this machine.
    pub(super) fn is_local(&self) -> bool {
        let host = self.url.host_str().unwrap_or_default();
        let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
        host == "localhost" || address.is_ok_and(|address| address.is_loopback() || address.is_unspecified())
    }

    fn endpoint(&self, path: &str) -> Url {
        // A relative path without a scheme always joins.
        self.url.join(path).unwrap_or_else(|_| self.url.clone())
    }

    /// Starts a generation; the answer's body is still to be read.
    pub(super) async fn generate(&self, body: &impl Serialize) -> Result<Response, Fault> {
        let sent = self.calls.post(self.endpoint("generate")).json(body).send().await;
        let response = sent.map_err(|error| Fault::unreachable(&self.name(), &error))?;
        let status = response.status();
        if status == StatusCode::OK {
            return Ok(response);
        }
        let body = read(response, LONGEST_ERROR).await.unwrap_or_default();
        Err(Fault::of_status(status, &body))
    }

    /// Asks the serve to stop a call. What it answers is of no interest.
    pub(super) async fn abort(&self, rid: &str) {
        let body = serde_json::json!({ "rid": rid });
        let request = self.control.post(self.endpoint("abort_request")).timeout(ABORT_TIMEOUT).json(&body);
        if let Err(error) = request.send().await {
            tracing::debug!(serve = self.name(), rid, error = causes(&error), "an abort was not delivered");
        }
    }

    /// Asks a control endpoint.
    pub(super) async fn ask(&self, path: &str, timeout: Duration) -> Answer {
        let answer = async {
            let response = self.control.get(self.endpoint(path)).send().await?;
            let status = response.status();
            if status != StatusCode::OK {
                return Ok(Answer::Status(status));
            }
            let body = read(response, LONGEST_ANSWER).await?;
            // Health has no body, and counts as well as any.
            Ok::<_, reqwest::Error>(Answer::Ok(serde_json::from_slice(&body).unwrap_or(Value::Null)))
        };
        match tokio::time::timeout(timeout, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) if error.is_timeout() => Answer::Timeout,
            Ok(Err(error)) => Answer::Unreachable(causes(&error)),
            Err(_) => Answer::Timeout,
        }
    }

    /// Its own account of its flags and sizes.
    pub(super) async fn server_info(&self, timeout: Duration) -> Option<Value> {
        self.ask_either(&["get_server_info", "server_info"], timeout).await.ok()
    }

    /// Asks the first of some endpoints that the serve has: names changed between versions.
    pub(super) async fn ask_either(&self, paths: &[&str], timeout: Duration) -> Answer {
        let mut last = Answer::Unreachable("nothing was asked".into());
        for path in paths {
            last = self.ask(path, timeout).await;
            if !matches!(last, Answer::Status(StatusCode::NOT_FOUND)) {
                break;
            }
        }
        last
    }
}

impl fmt::Debug for Serve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Serve({})", self.name())
    }
}

/// An address as it may be shown. It may be none, so whatever stands before an `@` counts as a user.
fn without_user(url: &str) -> String {
    match url.rsplit_once('@') {
        Some((user, host)) => {
            format!("{}***@{host}", user.split_inclusive("://").next().filter(|s| s.ends_with("://")).unwrap_or(""))
        }
        None => url.to_owned(),
    }
}

/// Whether an answer comes as events.
pub(super) fn is_stream(response: &Response) -> bool {
    response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

/// The first `limit` bytes of a body.
async fn read(mut response: Response, limit: usize) -> Result<Vec<u8>, reqwest::Error> {
    let mut body = Vec::new();
    while let Some(part) = response.chunk().await? {
        body.extend_from_slice(&part);
        if body.len() >= limit {
            body.truncate(limit);
            break;
        }
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked_and_shown_without_secrets() {
        crate::tls::install();
        let serve = Serve::new("http://user:pw@127.0.0.1:30000/base", Some("sk-secret")).unwrap();
        assert_eq!((serve.name().as_str(), serve.is_local()), ("127.0.0.1:30000", true));
        assert_eq!(serve.endpoint("generate").path(), "/base/generate");
        assert_eq!(format!("{serve:?}"), "Serve(127.0.0.1:30000)");
        let is_local = |url| Serve::new(url, None).unwrap().is_local();
        assert!(
            ["http://[::1]:1", "http://127.1.2.3", "http://LOCALHOST", "http://0.0.0.0:1"].into_iter().all(is_local)
        );
        assert!(!["https://gpu.example", "http://10.0.0.1", "http://[::2]"].into_iter().any(is_local));
        for wrong in ["ftp://user:pw@a", "http://user:pw@a:99999", "user:pw@a", "http://us@er:pw@a:x"] {
            let error = Serve::new(wrong, None).unwrap_err().to_string();
            assert!(error.contains("***@a") && !error.contains("pw") && !error.contains("er:"), "{error}");
        }
        for wrong in ["", "127.0.0.1:30000", "ws://127.0.0.1:1", "http://"] {
            let error = Serve::new(wrong, None).unwrap_err().to_string();
            assert!(error.contains("--serve-url"), "{error}");
        }
        assert!(Serve::new("http://a", Some("a\nb")).is_err());
    }
}
