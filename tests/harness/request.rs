//! Requests as bytes.
use serde_json::{Value, json};

/// One request, to be bent before it is sent.
#[derive(Clone, Debug)]
pub struct Request {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Request {
    pub fn new(method: &str, path: &str) -> Request {
        Request {
            method: method.into(),
            path: path.into(),
            headers: vec![("host".into(), "localhost".into())],
            body: Vec::new(),
        }
    }

    pub fn get(path: &str) -> Request {
        Request::new("GET", path)
    }

    pub fn post(path: &str, body: &Value) -> Request {
        Request::new("POST", path).body(body.to_string())
    }

    pub fn chat(body: &Value) -> Request {
        Request::post("/v1/chat/completions", body)
    }

    /// A JSON body as these very bytes.
    pub fn body(mut self, bytes: impl AsRef<[u8]>) -> Request {
        self.body = bytes.as_ref().to_vec();
        self.header("content-type", "application/json")
    }

    /// Replaces a header of this name.
    pub fn header(mut self, name: &str, value: &str) -> Request {
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Presents a client key.
    pub fn key(self, key: &str) -> Request {
        self.header("authorization", &format!("Bearer {key}"))
    }

    /// As it goes on the wire, with a `Content-Length` unless there is one already.
    pub fn bytes(&self) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.path);
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        let framed = self.headers.iter().any(|(name, _)| {
            name.eq_ignore_ascii_case("content-length") || name.eq_ignore_ascii_case("transfer-encoding")
        });
        if !framed && (!self.body.is_empty() || self.method == "POST") {
            head += &format!("content-length: {}\r\n", self.body.len());
        }
        let mut bytes = (head + "\r\n").into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

/// The smallest chat body.
pub fn hello(model: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": "hi"}]})
}

/// The smallest chat body with these fields set over it.
pub fn hello_with(model: &str, fields: Value) -> Value {
    let mut body = hello(model);
    let Value::Object(fields) = fields else { panic!("fields are an object: {fields}") };
    for (name, value) in fields {
        body[name] = value;
    }
    body
}

/// One function tool, as chat bodies carry it.
pub fn weather_tool() -> Value {
    json!({"type": "function", "function": {"name": "weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}})
}
