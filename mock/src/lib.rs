//! A scriptable OpenAI-compatible upstream.
