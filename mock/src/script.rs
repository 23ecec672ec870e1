//! Which step answers which request, and the record of what was asked.
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use crate::request::{Request, header};
use crate::step::{FOREVER, Step};

/// Recorded calls beyond this many push out the oldest.
const CALLS_MAX: usize = 100_000;
/// Recorded bodies beyond this many bytes in all push out the oldest calls.
const CALL_BYTES_MAX: usize = 64 * 1024 * 1024;

/// One request as it came, and how its answer ended.
#[derive(Clone, Debug)]
pub struct Call {
    /// Counts from 1; goes on over a reset.
    pub number: u64,
    /// Which connection brought it; equal numbers are a reused connection.
    pub connection: u64,
    pub request: Request,
    pub key: Option<String>,
    /// When the whole request had come.
    pub at: Instant,
    /// The same in milliseconds since 1970.
    pub at_unix_ms: u64,
    /// The status that was sent, unless the script wrote the bytes itself or sent none.
    pub status: Option<u16>,
    /// After how long the last byte of the answer was written; `None` while it runs, or when the client left.
    pub answered_after: Option<Duration>,
    /// After how long the client was seen to have left, with the answer unfinished.
    pub left_after: Option<Duration>,
}

impl Call {
    pub fn path(&self) -> &str {
        &self.request.path
    }

    /// The parsed body; `Null` when it is no JSON.
    pub fn json(&self) -> &Value {
        self.request.json.as_ref().unwrap_or(&Value::Null)
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.request.headers, name)
    }

    /// As the control plane shows it.
    pub(crate) fn view(&self) -> Value {
        let ms = |after: Option<Duration>| after.map(|after| after.as_millis() as u64);
        let headers: Map<String, Value> = self
            .request
            .headers
            .iter()
            .map(|(name, value)| (name.to_ascii_lowercase(), value.as_str().into()))
            .collect();
        json!({
            "path": self.request.path,
            "query": self.request.query,
            "method": self.request.method,
            "body": self.request.json,
            "bytes": self.request.body.len(),
            "key": self.key,
            "headers": headers,
            "at": self.at_unix_ms,
            "connection": self.connection,
            "status": self.status,
            "answeredMs": ms(self.answered_after),
            "leftMs": ms(self.left_after),
        })
    }
}

/// Steps in order; each answers `repeat` requests, the last one all that follow.
#[derive(Debug, Default)]
struct Script {
    steps: VecDeque<Step>,
}

impl Script {
    fn new(steps: Vec<Step>) -> Script {
        Script { steps: steps.into() }
    }

    /// The first step that is meant for such a request; it is used up unless it is the last such.
    fn next(&mut self, request: &Request, key: Option<&str>) -> Option<Step> {
        let mut fitting = (0..self.steps.len()).filter(|at| matches(&self.steps[*at], request, key));
        let at = fitting.next()?;
        let another = fitting.next().is_some();
        let step = self.steps.get_mut(at)?;
        let chosen = step.clone();
        match step.repeat {
            FOREVER => {}
            0 | 1 if another => drop(self.steps.remove(at)),
            0 | 1 => {}
            _ => step.repeat -= 1,
        }
        Some(chosen)
    }
}

fn matches(step: &Step, request: &Request, key: Option<&str>) -> bool {
    step.path.as_ref().is_none_or(|ending| request.path.ends_with(ending.as_str()))
        && step.model.as_ref().is_none_or(|model| request.model() == Some(model))
        && step.key.as_ref().is_none_or(|wanted| key == Some(wanted))
}

/// Everything that can change while the server runs.
#[derive(Debug)]
pub(crate) struct State {
    script: Script,
    keys: BTreeMap<String, Script>,
    by_model: BTreeMap<String, Script>,
    pub(crate) models: Vec<String>,
    calls: VecDeque<Call>,
    call_bytes: usize,
    calls_begun: u64,
}

impl State {
    pub(crate) fn new(models: Vec<String>) -> State {
        State {
            script: Script::default(),
            keys: BTreeMap::new(),
            by_model: BTreeMap::new(),
            models,
            calls: VecDeque::new(),
            call_bytes: 0,
            calls_begun: 0,
        }
    }

    pub(crate) fn set_script(&mut self, steps: Vec<Step>) {
        self.script = Script::new(steps);
    }

    pub(crate) fn set_keys(&mut self, keys: BTreeMap<String, Vec<Step>>) {
        self.keys = keys.into_iter().map(|(key, steps)| (key, Script::new(steps))).collect();
    }

    pub(crate) fn set_by_model(&mut self, models: BTreeMap<String, Vec<Step>>) {
        self.by_model = models.into_iter().map(|(model, steps)| (model, Script::new(steps))).collect();
    }

    /// The step for a request: what is set for its key, else for its model, else the next of the script, else the
    /// well-behaved one.
    pub(crate) fn choose(&mut self, request: &Request) -> Step {
        let key = request.key();
        let key = key.as_deref();
        let by_key = key.and_then(|key| self.keys.get_mut(key)).and_then(|script| script.next(request, key));
        by_key
            .or_else(|| self.by_model.get_mut(request.model()?)?.next(request, key))
            .or_else(|| self.script.next(request, key))
            .unwrap_or_default()
    }

    /// Notes a request; the number is for [`State::call_mut`].
    pub(crate) fn record(&mut self, connection: u64, request: &Request) -> u64 {
        self.calls_begun += 1;
        self.call_bytes += request.body.len();
        self.calls.push_back(Call {
            number: self.calls_begun,
            connection,
            key: request.key(),
            request: request.clone(),
            at: Instant::now(),
            at_unix_ms: unix_ms(),
            status: None,
            answered_after: None,
            left_after: None,
        });
        while self.calls.len() > CALLS_MAX || (self.call_bytes > CALL_BYTES_MAX && self.calls.len() > 1) {
            let dropped = self.calls.pop_front();
            self.call_bytes -= dropped.map_or(0, |call| call.request.body.len());
        }
        self.calls_begun
    }

    pub(crate) fn call_mut(&mut self, number: u64) -> Option<&mut Call> {
        let first = self.calls.front()?.number;
        self.calls.get_mut(usize::try_from(number.checked_sub(first)?).ok()?)
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.calls.iter().cloned().collect()
    }

    /// Forgets calls and scripts; the model list stays. Numbers go on, so that answers in flight find no wrong call.
    pub(crate) fn reset(&mut self) {
        self.script = Script::default();
        self.keys.clear();
        self.by_model.clear();
        self.calls.clear();
        self.call_bytes = 0;
    }
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(path: &str, model: &str) -> Request {
        Request {
            method: "POST".into(),
            path: path.into(),
            query: String::new(),
            headers: vec![("Authorization".into(), "Bearer k1".into())],
            body: Vec::new(),
            json: Some(json!({"model": model})),
            keep_alive: true,
        }
    }

    fn statuses(state: &mut State, requests: &[Request]) -> Vec<u16> {
        requests.iter().map(|request| state.choose(request).status).collect()
    }

    #[test]
    fn steps_run_in_order_and_the_last_one_stays() {
        let mut state = State::new(Vec::new());
        state.set_script(vec![Step::status(500).times(2), Step::status(429), Step::ok()]);
        let chat = request("/v1/chat/completions", "m");
        assert_eq!(statuses(&mut state, &vec![chat; 6]), [500, 500, 429, 200, 200, 200]);
    }

    #[test]
    fn a_step_waits_for_the_request_it_is_meant_for() {
        let mut state = State::new(Vec::new());
        state.set_script(vec![
            Step::status(503).for_path("/embeddings"),
            Step::status(418).for_model("a"),
            Step::ok(),
        ]);
        let (chat, other, embed) = (
            request("/chat/completions", "b"),
            request("/chat/completions", "a"),
            request("/embeddings", "b"),
        );
        assert_eq!(
            statuses(&mut state, &[chat.clone(), embed.clone(), embed, other, chat]),
            [200, 503, 200, 418, 200]
        );
    }

    #[test]
    fn a_step_for_ever_is_never_used_up() {
        let mut state = State::new(Vec::new());
        state.set_script(vec![Step::status(500).times(FOREVER), Step::ok()]);
        assert_eq!(statuses(&mut state, &vec![request("/x", "m"); 3]), [500, 500, 500]);
    }

    #[test]
    fn keys_come_before_models_and_models_before_the_script() {
        let mut state = State::new(Vec::new());
        state.set_script(vec![Step::status(201)]);
        state.set_by_model(BTreeMap::from([("a".into(), vec![Step::status(404)])]));
        let (a, b) = (request("/x", "a"), request("/x", "b"));
        assert_eq!(statuses(&mut state, &[a.clone(), b.clone()]), [404, 201]);
        state.set_keys(BTreeMap::from([("k1".into(), vec![Step::status(401).for_model("b")])]));
        assert_eq!(statuses(&mut state, &[a, b]), [404, 401]);
    }
}
