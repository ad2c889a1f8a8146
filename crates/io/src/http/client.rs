//! The client: one request, one answer, blocking.

use super::IDLE_MAX;
use farmem_control::api::{ApiError, Call, Request, Response};
use serde_json::Value;
use std::time::Duration;

/// Longest wait for an answer. A request may wait for table updates that are retransmitted for some seconds.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);

/// Asks a control plane.
#[derive(Debug)]
pub struct ApiClient {
    agent: ureq::Agent,
    url: String,
    token: String,
}

/// Why there is no good answer.
#[derive(Debug, thiserror::Error)]
pub enum ApiCallError {
    /// The control plane refused.
    #[error("{}", .0.message)]
    Refused(ApiError),
    /// Nothing answers there.
    #[error("no control plane answers at {url}: {why}")]
    Unreachable {
        /// Where it was asked.
        url: String,
        /// What the system said.
        why: String,
    },
    /// Something answers that is not a control plane of this version.
    #[error("what answers at {url} is not a control plane of this version: {why}")]
    Foreign {
        /// Where it was asked.
        url: String,
        /// What was wrong with the answer.
        why: String,
    },
}

impl ApiClient {
    /// A client of the control plane at `url`, such as `http://127.0.0.1:7471`.
    #[must_use]
    pub fn new(url: &str, token: &str) -> Self {
        Self::within(url, token, ANSWER_TIME_MAX)
    }

    /// One that gives an answer up after `most`, and asks over a new connection then: for what must not wait behind one that broke.
    #[must_use]
    pub fn impatient(self, most: Duration) -> Self {
        Self::within(&self.url, &self.token, most)
    }

    fn within(url: &str, token: &str, most: Duration) -> Self {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None) // a rack is reached directly; a proxy in the environment is for the world outside
            .max_idle_age(IDLE_MAX)
            .timeout_global(Some(most))
            .build();
        Self { agent: config.into(), url: url.trim_end_matches('/').into(), token: token.into() }
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// [`ApiCallError`].
    pub fn call<C: Call>(&mut self, call: C) -> Result<C::Answer, ApiCallError> {
        let request = call.into();
        let (name, body) = (request.name(), fields(&request));
        let url = format!("{}/v1/{name}", self.url);
        let unreachable =
            |e: ureq::Error| ApiCallError::Unreachable { url: self.url.clone(), why: e.to_string() };
        let answer =
            self.agent.post(&url).header("Authorization", format!("Bearer {}", self.token)).send_json(&body);
        let mut answer = answer.map_err(unreachable)?;
        let good = answer.status().is_success();
        let text = answer.body_mut().read_to_string().map_err(unreachable)?;
        let foreign = |why: String| ApiCallError::Foreign { url: self.url.clone(), why };
        let unread = |e: serde_json::Error| foreign(e.to_string());
        if !good {
            return Err(ApiCallError::Refused(serde_json::from_str(&text).map_err(unread)?));
        }
        let response: Response = serde_json::from_str(&text).map_err(unread)?;
        C::Answer::try_from(response).map_err(|_| foreign(format!("its answer is not one to {name}")))
    }
}

/// A request's fields, without its name.
fn fields(request: &Request) -> Value {
    let mut value = serde_json::to_value(request).expect("the API's types have only strings for keys");
    value.as_object_mut().expect("a request is an object").remove("op");
    value
}
