//! The one error that clients see: its status, its code, its envelope, and what to do next.
use serde_json::{Map, Value, json};

/// The `error.type` of the envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorType {
    InvalidRequest,
    RateLimit,
    Api,
}

impl ErrorType {
    /// Its word in the envelope.
    pub const fn as_str(self) -> &'static str {
        match self {
            ErrorType::InvalidRequest => "invalid_request_error",
            ErrorType::RateLimit => "rate_limit_error",
            ErrorType::Api => "api_error",
        }
    }

    /// The type that goes with a status: what a client can mend, what it should wait for, what is ours.
    pub const fn of_status(status: u16) -> ErrorType {
        match status {
            429 => ErrorType::RateLimit,
            400..=499 => ErrorType::InvalidRequest,
            _ => ErrorType::Api,
        }
    }
}

/// An answer that tells a client why it got nothing, in OpenAI's shape plus our own `freeway` object.
#[derive(Clone, Debug)]
pub struct ApiError {
    pub status: u16,
    pub kind: ErrorType,
    /// `error.code`, one of the words of our documentation or the upstream's own.
    pub code: String,
    /// For a person: what happened and what to do.
    pub message: String,
    /// The request field at fault, such as `messages[2].role`.
    pub param: Option<String>,
    /// The members of the `freeway` object; left out when empty.
    pub freeway: Map<String, Value>,
    /// Sent as `Retry-After`, in whole seconds rounded up.
    pub retry_after_ms: Option<u64>,
    /// Further response headers, such as `Allow` or `WWW-Authenticate`.
    pub headers: Vec<(&'static str, String)>,
}

impl ApiError {
    /// An error of the type that goes with its status.
    pub fn new(status: u16, code: &str, message: impl Into<String>) -> ApiError {
        ApiError {
            status,
            kind: ErrorType::of_status(status),
            code: code.into(),
            message: message.into(),
            param: None,
            freeway: Map::new(),
            retry_after_ms: None,
            headers: Vec::new(),
        }
    }

    /// A 400 that names the field at fault.
    pub fn bad_field(code: &str, param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError::new(400, code, message).param(param)
    }

    /// Names the field at fault.
    pub fn param(mut self, param: impl Into<String>) -> ApiError {
        self.param = Some(param.into());
        self
    }

    /// Adds a member to the `freeway` object.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> ApiError {
        self.freeway.insert(name.into(), value.into());
        self
    }

    /// Says when to come back.
    pub fn retry_after(mut self, ms: u64) -> ApiError {
        self.retry_after_ms = Some(ms);
        self
    }

    /// Adds a response header.
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> ApiError {
        self.headers.push((name, value.into()));
        self
    }

    /// The `Retry-After` value in seconds: rounded up and never zero, since a client that comes back early is told
    /// the same again.
    pub fn retry_after_s(&self) -> Option<u64> {
        self.retry_after_ms.map(|ms| ms.div_ceil(1000).max(1))
    }

    /// The JSON body, or the data of the one event that ends a stream which cannot be finished.
    pub fn body(&self) -> Vec<u8> {
        let mut body = json!({"error": self.inner()});
        if !self.freeway.is_empty() {
            body["freeway"] = Value::Object(self.freeway.clone());
        }
        body.to_string().into_bytes()
    }

    fn inner(&self) -> Value {
        json!({
            "message": self.message,
            "type": self.kind.as_str(),
            "param": self.param,
            "code": if self.code.is_empty() { Value::Null } else { Value::from(self.code.as_str()) },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_four_fields_are_always_there() {
        let body = ApiError::new(404, "not_found", "no such route").body();
        assert_eq!(
            serde_json::from_slice::<Value>(&body).expect("our own JSON parses"),
            json!({"error": {"message": "no such route", "type": "invalid_request_error", "param": null, "code": "not_found"}})
        );
    }

    #[test]
    fn waiting_times_round_up() {
        let seconds = |ms| ApiError::new(429, "x", "x").retry_after(ms).retry_after_s();
        assert_eq!((seconds(41_200), seconds(0), seconds(1_000)), (Some(42), Some(1), Some(1)));
    }
}
