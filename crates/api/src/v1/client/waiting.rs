//! Waiting for what becomes of an instance.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use super::super::problem::Kind;
use super::super::resources::Instance;
use super::{ANSWER_TIMEOUT, ATTEMPT_MIN, Client, ClientError};

/// A wait for what becomes of an instance is asked for up to this length, so that an answer which
/// does not come at all is told from one that is waited for.
const WAIT: Duration = Duration::from_secs(10);

/// Control planes of earlier microversions do not wait, and are asked again after this time.
const WAIT_MINOR: u32 = 7;
const LOOK_AGAIN: Duration = Duration::from_millis(100);

impl Client {
    /// An instance once it is neither made nor removed any longer, or as it is after `limit`, or
    /// sooner: whoever wants to know asks again.
    pub fn instance_within(&self, id: &str, limit: Duration) -> Result<Instance, ClientError> {
        // What is waited for comes within the time that an attempt has.
        let attempt = self.patience.map_or(ANSWER_TIMEOUT, |patience| {
            let replicas = u32::try_from(self.bases.len()).unwrap_or(u32::MAX);
            (patience / replicas).clamp(ATTEMPT_MIN, ANSWER_TIMEOUT)
        });
        let wait = limit.min(WAIT).min(attempt / 2);
        let is_known = || self.minor.load(Ordering::Relaxed) >= WAIT_MINOR;
        if is_known() {
            match self.get(&format!("/v1/instances/{id}?wait_ms={}", wait.as_millis())) {
                Err(ClientError::Refused(problem))
                    if problem.kind == Kind::Malformed && !is_known() => {}
                answered => return answered,
            }
        }
        thread::sleep(wait.min(LOOK_AGAIN));
        self.instance(id)
    }
}
