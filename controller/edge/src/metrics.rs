//! A few counters, as text. No label holds anything a caller wrote.

use axum::http::StatusCode;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

/// What the edge counts about itself.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    answers: [AtomicU64; 6],
    failed_credentials: AtomicU64,
}

impl Counters {
    /// An answer went out.
    pub(crate) fn answered(&self, status: StatusCode) {
        let class = usize::from(status.as_u16() / 100).min(self.answers.len() - 1);
        self.answers[class].fetch_add(1, Ordering::Relaxed);
    }

    /// A credential was not good.
    pub(crate) fn credential_failed(&self) {
        self.failed_credentials.fetch_add(1, Ordering::Relaxed);
    }

    /// The counters in the text format of Prometheus.
    pub(crate) fn text(&self) -> String {
        let mut text = String::from("# TYPE lazaret_http_responses_total counter\n");
        for (class, count) in self.answers.iter().enumerate().skip(1) {
            let _ = writeln!(
                text,
                "lazaret_http_responses_total{{class=\"{class}xx\"}} {}",
                count.load(Ordering::Relaxed)
            );
        }
        let _ = writeln!(
            text,
            "# TYPE lazaret_failed_credentials_total counter\nlazaret_failed_credentials_total {}",
            self.failed_credentials.load(Ordering::Relaxed)
        );
        text
    }
}
