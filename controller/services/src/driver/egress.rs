//! The gateway's decisions as events: fetched again and again while the run works, and to the last one
//! before it ends. Nothing follows the end, so what a kept sandbox tries afterwards is only logged.

use super::asking::answered;
use super::session::{Halt, Session};
use crate::ports::store::Fact;
use lazaret_api::host::EgressRecords;
use lazaret_api::public::EventBody;
use lazaret_domain::{Denial, DenialCode};
use std::time::Duration;

/// Decisions that a host gives in one answer, if it has so many.
const PAGE: usize = 1000;
/// Pages that are read at the end; a host keeps fewer.
const PAGES: usize = 16;
/// How long the host may take for one page.
const PATIENCE: Duration = Duration::from_secs(2);

impl Session {
    /// Tells the gateway's decisions that were not told yet, as far as one answer holds them. A host
    /// that cannot be asked now is asked the next time: nothing else waits for this.
    pub(super) async fn fetch_egress(&mut self) -> Result<(), Halt> {
        self.next_egress().await.ok();
        self.flush().await
    }

    /// Tells all that are left, to be written with the run's end. What cannot be told is said.
    pub(super) async fn fetch_last_egress(&mut self) -> Result<(), Halt> {
        // The host said with the end of the last command how many there were.
        let all_told = self.egress_known == Some(self.run.facts.egress_after);
        if self.run.facts.sandbox.is_none() || all_told {
            return Ok(());
        }
        for _ in 0..PAGES {
            match self.next_egress().await {
                Ok(false) => return Ok(()),
                Ok(true) => self.flush().await?,
                Err(denial) => {
                    let text =
                        format!("what the sandbox last tried to reach could not be read: {denial}");
                    self.put_off([Fact::Event(EventBody::Note { text })]);
                    return Ok(());
                }
            }
        }
        let text = "the sandbox tries to reach more than can be told".to_owned();
        self.put_off([Fact::Event(EventBody::Note { text })]);
        Ok(())
    }

    /// Puts off one page of decisions; whether there are more.
    pub(super) async fn next_egress(&mut self) -> Result<bool, Denial> {
        let retired = || Denial::new(DenialCode::HostUnreachable, "its host was retired");
        let host = &self.run.plan.host;
        let link = self.core.hosts.link(host).ok_or_else(retired)?;
        if self.run.facts.sandbox.is_none() {
            return Ok(false);
        }
        let after = self.run.facts.egress_after;
        let patience = PATIENCE.min(self.core.settings.pace.patience);
        let asked = link.egress(&self.run.plan.sandbox, after);
        let EgressRecords { records, .. } = answered(patience, asked).await?;
        let more = records.len() >= PAGE;
        let new: Vec<_> = records
            .into_iter()
            .filter(|record| record.seq > after)
            .collect();
        let Some(last) = new.iter().map(|record| record.seq).max() else {
            return Ok(false);
        };
        let mut facts = vec![self.facts(|facts| facts.egress_after = last)];
        let first = new.iter().map(|record| record.seq).min().unwrap_or(last);
        if first > after + 1 {
            let missing = first - after - 1;
            facts.push(Fact::Event(EventBody::Gap {
                missing,
                unit: "events".to_owned(),
            }));
        }
        facts.extend(
            new.into_iter()
                .map(|record| Fact::Event(EventBody::Egress { record })),
        );
        self.put_off(facts);
        Ok(more)
    }
}
