//! Stored conversations: what is put before a request, what is kept of a turn and what is not, and whose it is.
use crate::harness::*;

/// Sends these messages as a part of a session.
fn say(gateway: &Gateway, session: &str, messages: Value) -> Answer {
    gateway.chat_with("m", json!({"session": session, "messages": messages}))
}

/// Sends one user message.
fn tell(gateway: &Gateway, session: &str, text: &str) -> Answer {
    say(gateway, session, json!([{"role": "user", "content": text}]))
}

/// The messages that the upstream got with its latest call.
fn sent(mock: &MockUpstream) -> Value {
    chats(mock).last().expect("a call").json()["messages"].clone()
}

/// The same as `role:content`, one after another.
fn heard(mock: &MockUpstream) -> Vec<String> {
    let word = |message: &Value| {
        let content = message["content"].as_str().unwrap_or("-");
        format!("{}:{content}", message["role"].as_str().unwrap_or("?"))
    };
    sent(mock).as_array().expect("a list").iter().map(word).collect()
}

#[test]
fn w12_a_message_that_was_sent_before_is_appended_all_the_same() {
    let (alpha, gateway) = gateway_over([Step::say("one"), Step::say("two"), Step::say("three")]);
    tell(&gateway, "s", "continue").ok();
    tell(&gateway, "s", "continue").ok();
    assert_eq!(heard(&alpha), ["user:continue", "assistant:one", "user:continue"]);
    tell(&gateway, "s", "continue").ok();
    assert_eq!(
        heard(&alpha),
        ["user:continue", "assistant:one", "user:continue", "assistant:two", "user:continue"]
    );
}
