//! Provider files for tests, with the variables that their keys come from.
use mock_upstream::MockUpstream;
use serde_json::{Value, json};

/// One provider file in the making.
#[derive(Clone, Debug)]
pub struct Provider {
    id: String,
    fields: Value,
    /// `None` stands for one model called `m`.
    models: Option<Vec<Value>>,
    keys: Vec<String>,
}

/// A provider with the id of `mock`, one key and one model called `m`, unless they are set.
pub fn provider(mock: &MockUpstream) -> Provider {
    Provider::at(mock.name(), &mock.url())
}

impl Provider {
    pub fn at(id: &str, base_url: &str) -> Provider {
        // No discovery: a test counts every call that its upstream gets.
        let fields =
            json!({"id": id, "baseUrl": base_url, "modelsEndpoint": null, "auth": {"type": "bearer"}});
        Provider { id: id.into(), fields, models: None, keys: vec![format!("{id}-key")] }
    }

    /// Sets any field of the file.
    pub fn set(mut self, field: &str, value: Value) -> Provider {
        self.fields[field] = value;
        self
    }

    /// Lower comes first.
    pub fn priority(self, priority: u32) -> Provider {
        self.set("priority", priority.into())
    }

    pub fn limits(self, limits: Value) -> Provider {
        self.set("limits", limits)
    }

    pub fn keys<const N: usize>(mut self, keys: [&str; N]) -> Provider {
        self.keys = keys.map(String::from).to_vec();
        self
    }

    pub fn keyless(mut self) -> Provider {
        self.keys.clear();
        self.set("auth", json!({"type": "none"}))
    }

    /// Adds a model that can do all that chat knows.
    pub fn model(self, id: &str) -> Provider {
        self.model_with(id, json!({}))
    }

    /// The same with these fields set over it.
    pub fn model_with(mut self, id: &str, fields: Value) -> Provider {
        let mut model = json!({"id": id, "caps": ["chat", "tools", "json", "vision"], "context": 128_000});
        for (name, value) in fields.as_object().expect("fields are an object") {
            model[name] = value.clone();
        }
        self.models.get_or_insert_default().push(model);
        self
    }

    /// Declares none at all.
    pub fn without_models(mut self) -> Provider {
        self.models = Some(Vec::new());
        self
    }

    pub fn embed_model(self, id: &str) -> Provider {
        self.model_with(id, json!({"caps": ["embed"]}))
    }

    /// The name and text of its file.
    pub fn file(&self) -> (String, String) {
        let mut fields = self.fields.clone();
        if fields["auth"]["type"] != "none" && fields["auth"].get("envKeys").is_none() {
            fields["auth"]["envKeys"] = json!([self.variable()]);
        }
        fields["models"] = self.models.clone().or_else(|| self.clone().model("m").models).into();
        (format!("{}.json", self.id), format!("{fields:#}"))
    }

    /// The variable that holds its keys, and its value.
    pub fn variables(&self) -> Option<(String, String)> {
        (!self.keys.is_empty()).then(|| (self.variable(), self.keys.join(",")))
    }

    fn variable(&self) -> String {
        format!("{}_API_KEY", self.id.to_uppercase().replace('-', "_"))
    }
}
