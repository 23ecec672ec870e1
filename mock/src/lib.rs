//! A scriptable OpenAI-compatible upstream, made to misbehave: it works on raw sockets, so that every byte, pause and
//! ending can be asked for. Tests use the library; people use the program, and drive it over its control plane.
//!
//! Unscripted it is a well-behaved server: chat (JSON and stream, tools, `n`, JSON formats), embeddings, a model list.
//! A [`Step`] bends one answer; steps stand in a script, or belong to a key or a model. Every request is recorded
//! as a [`Call`], with the moment at which its client left, should it leave early.
//!
//! `/v1` before a path is optional, and so is any other prefix.
//!
//! | control | does |
//! |---|---|
//! | `POST /__control` `{reset?, script?: [Step], keys?: {key: Step or [Step]}, byModel?: {model: Step or [Step]}, models?: [id]}` | changes the behaviour, all or nothing |
//! | `GET /__calls` | shows the recorded calls, those to the control plane included |
//!
//! In JSON a step has the fields of [`Step`] in camel case (`delayMs`, `cutAt`, `toolCalls`, ...); all are optional, and
//! an unknown one is refused. Enums are their names in lower case (`"end": "reset"`), `repeat` may be `"forever"`, `gzip`
//! may be `true`, `dropUsage: true` is `"usage": "none"`. The writes of `raw` and `writes` are `"text"`,
//! `{"text" or "hex": .., "times": n, "pauseMs": n}`, `{"pauseMs": n}` or `{"end": "close" or "reset" or "hold"}`.
//!
//! It must not know anything of the gateway that it is used to test.
mod answer;
mod openai;
mod ports;
mod request;
mod script;
mod server;
mod step;
mod step_json;

pub use ports::{ClosedPort, SilentPort};
pub use request::Request;
pub use script::Call;
pub use server::{MockOptions, MockUpstream};
pub use step::{
    Act, End, FOREVER, Framing, Gzip, Newline, Step, ToolCall, ToolStyle, Usage, delta, event, finish,
};
pub use step_json::{step as step_from_json, steps as steps_from_json};
