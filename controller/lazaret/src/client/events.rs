//! Follows a run: the server-sent events of one run in order, without gap or repetition, across lost
//! connections. Each new connection names the last event seen (`Last-Event-ID`).

use super::Client;
use super::patience::Patience;
use crate::failure::Failure;
use futures::StreamExt;
use lazaret_api::public::{Event, EventBody};
use lazaret_domain::RunId;
use reqwest::{Method, Response};
use std::time::Duration;

/// A longer event is not one of this API.
const MAX_EVENT: usize = 4 << 20;

/// The events of one run, from a number on.
pub struct Follower<'a> {
    client: &'a Client,
    run: RunId,
    last: u64,
    over: bool,
    connection: Option<Connection>,
    patience: Patience,
    pause: Option<Duration>,
    /// Whether the outage that goes on was spoken of.
    told: bool,
}

/// What there is to say about a run that is followed.
#[derive(Debug)]
pub enum News {
    /// Something happened to the run.
    Event(Event),
    /// The controller is away; it is tried again. Said once for each outage, with what happened.
    Away(String),
}

struct Connection {
    body: futures::stream::BoxStream<'static, Result<bytes::Bytes, reqwest::Error>>,
    parser: Parser,
}

impl Client {
    /// Follows a run from the event after `after` on.
    #[must_use]
    pub fn follow(&self, run: &RunId, after: u64) -> Follower<'_> {
        Follower {
            client: self,
            run: run.clone(),
            last: after,
            over: false,
            connection: None,
            patience: Patience::default(),
            pause: None,
            told: false,
        }
    }
}

impl Follower<'_> {
    /// What happens next; none after the last event.
    ///
    /// # Errors
    /// Where the controller refuses, or stays away for longer than [`Patience`] allows.
    pub async fn next(&mut self) -> Result<Option<News>, Failure> {
        while !self.over {
            if let Some(pause) = self.pause.take() {
                tokio::time::sleep(pause).await;
            }
            match self.next_of_connection().await {
                Ok(Some(event)) => {
                    self.patience = Patience::default();
                    self.told = false;
                    self.last = event.seq;
                    self.over = matches!(event.body, EventBody::End { .. });
                    return Ok(Some(News::Event(event)));
                }
                // Servers and proxies end long answers now and then: nothing to speak of.
                Ok(None) => {
                    let why = "the event stream ended before the run did".into();
                    let url = self.client.url().to_owned();
                    self.connection = None;
                    self.pause = Some(self.patience.spend(Failure::Unreachable { url, why })?);
                }
                Err(failure) => {
                    let why = failure.brief();
                    self.connection = None;
                    self.pause = Some(self.patience.spend(failure)?);
                    if !std::mem::replace(&mut self.told, true) {
                        return Ok(Some(News::Away(why)));
                    }
                }
            }
        }
        Ok(None)
    }

    /// The next event that was not seen yet; none where the connection ends.
    async fn next_of_connection(&mut self) -> Result<Option<Event>, Failure> {
        let client = self.client;
        if self.connection.is_none() {
            let response = self.connect().await?;
            self.connection = Some(Connection {
                body: response.bytes_stream().boxed(),
                parser: Parser::default(),
            });
        }
        let Some(connection) = self.connection.as_mut() else {
            return Ok(None);
        };
        loop {
            while let Some(data) = connection.parser.next()? {
                let event: Event = serde_json::from_str(&data).map_err(|error| {
                    Failure::doing("the event stream holds something that is no event", error)
                })?;
                if event.seq > self.last {
                    return Ok(Some(event));
                }
            }
            match connection.body.next().await {
                Some(chunk) => connection
                    .parser
                    .feed(&chunk.map_err(|error| client.unreachable(&error))?),
                None => return Ok(None),
            }
        }
    }

    async fn connect(&self) -> Result<Response, Failure> {
        let url = self.client.api(&["runs", self.run.as_str(), "events"]);
        let mut request = self
            .client
            .request(Method::GET, url)
            .header("accept", "text/event-stream");
        if self.last > 0 {
            request = request.header("last-event-id", self.last.to_string());
        }
        self.client.send(request).await
    }
}

/// Takes server-sent events apart: `data:` lines joined, an event at each empty line.
#[derive(Default)]
pub(crate) struct Parser {
    buffer: Vec<u8>,
    data: String,
    has_data: bool,
}

impl Parser {
    /// Takes in bytes as they arrive.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The data of the next whole event, if there is one.
    pub(crate) fn next(&mut self) -> Result<Option<String>, Failure> {
        while let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.buffer.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches(['\n', '\r']);
            if line.is_empty() {
                if std::mem::take(&mut self.has_data) {
                    return Ok(Some(std::mem::take(&mut self.data)));
                }
            } else if let Some(data) = line.strip_prefix("data:") {
                if self.has_data {
                    self.data.push('\n');
                }
                self.has_data = true;
                self.data.push_str(data.strip_prefix(' ').unwrap_or(data));
            }
            if self.data.len() > MAX_EVENT {
                return Err(Failure::Failed(
                    "the event stream holds an event of more than 4 MiB".into(),
                ));
            }
        }
        if self.buffer.len() > MAX_EVENT {
            return Err(Failure::Failed(
                "the event stream holds a line of more than 4 MiB".into(),
            ));
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(chunks: &[&str]) -> Vec<String> {
        let mut parser = Parser::default();
        let mut all = Vec::new();
        for chunk in chunks {
            parser.feed(chunk.as_bytes());
            while let Some(data) = parser.next().unwrap() {
                all.push(data);
            }
        }
        all
    }

    #[test]
    fn events_are_whole_however_the_bytes_arrive() {
        let text = ": hello\nid: 1\nevent: log\ndata: {\"a\":1}\n\n:\n\ndata: x\r\ndata: y\r\n\r\ndata: unfinished";
        let whole = parse(&[text]);
        assert_eq!(whole, ["{\"a\":1}", "x\ny"]);
        let single: Vec<String> = text.chars().map(String::from).collect();
        let single: Vec<&str> = single.iter().map(String::as_str).collect();
        assert_eq!(parse(&single), whole);
    }

    #[test]
    fn an_endless_line_is_refused() {
        let mut parser = Parser::default();
        parser.feed(&vec![b'x'; MAX_EVENT + 1]);
        assert!(parser.next().is_err());
    }
}
