//! `GET /metrics`: figures for Prometheus, in its text format. Names end in their unit; labels are few and bounded.
use std::fmt::Write as _;

use super::answer::Answer;
use super::conn::Admission;
use super::routes::Visit;
use super::server::Figures;
use super::views;
use crate::base::clock;
use crate::relay::gateway::Gateway;
use crate::relay::tally::{BUCKETS_MS, Tally};

/// Serves the figures.
pub fn metrics(visit: Visit<'_>) -> Admission {
    let text = text(visit.gateway, visit.keeper.monitor.get().map(|monitor| monitor.figures()));
    let mut answer = Answer::json(200, text.into_bytes());
    answer.headers.retain(|(name, _)| *name != "content-type");
    answer.headers.push(("content-type", "text/plain; version=0.0.4; charset=utf-8".into()));
    visit.answer(answer)
}

/// One family after the other.
struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl std::fmt::Display) {
        let _ = match labels {
            "" => writeln!(self.0, "{name} {value}"),
            labels => writeln!(self.0, "{name}{{{labels}}} {value}"),
        };
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: impl std::fmt::Display) {
        self.family(name, kind, help);
        self.sample(name, "", value);
    }
}

fn text(gateway: &Gateway, figures: Option<Figures>) -> String {
    let mut page = Page(String::new());
    let (ready, _) = views::readiness(gateway);
    page.family("freeway_info", "gauge", "The version that runs.");
    page.sample("freeway_info", &label("version", env!("CARGO_PKG_VERSION")), 1);
    page.single(
        "freeway_uptime_seconds",
        "gauge",
        "Time since the start.",
        clock::uptime_ms() as f64 / 1000.0,
    );
    page.single("freeway_ready", "gauge", "Whether requests can be served.", u8::from(ready));
    let models = gateway.turns.tallies();
    of_models(&mut page, &models);
    benches(&mut page, gateway);
    if let Some(figures) = figures {
        of_server(&mut page, &figures);
    }
    page.0
}

type Models = [(std::sync::Arc<str>, std::sync::Arc<str>, Tally)];

fn of_models(page: &mut Page, models: &Models) {
    let labels =
        |provider: &str, model: &str| format!("{},{}", label("provider", provider), label("model", model));
    page.family("freeway_requests_total", "counter", "Finished requests; no provider where nobody served.");
    for (provider, model, tally) in models {
        for (status, count) in &tally.statuses {
            let labels = format!("{},status=\"{status}\"", labels(provider, model));
            page.sample("freeway_requests_total", &labels, count);
        }
    }
    type Figure = fn(&Tally) -> u64;
    let counters: [(&str, &str, Figure); 4] = [
        ("freeway_cached_requests_total", "Requests answered from a cache.", |tally| tally.cached),
        ("freeway_failed_attempts_total", "Upstream calls that did not serve.", |tally| {
            tally.failed_attempts
        }),
        ("freeway_prompt_tokens_total", "Tokens of prompts.", |tally| tally.tokens_in),
        ("freeway_output_tokens_total", "Tokens of answers.", |tally| tally.tokens_out),
    ];
    for (name, help, value) in counters {
        page.family(name, "counter", help);
        for (provider, model, tally) in models {
            page.sample(name, &labels(provider, model), value(tally));
        }
    }
    let name = "freeway_request_seconds";
    page.family(name, "histogram", "From the request's last byte to the answer's last byte.");
    for (provider, model, tally) in models.iter().filter(|(.., tally)| !tally.statuses.is_empty()) {
        let labels = labels(provider, model);
        let mut below = 0;
        for (i, count) in tally.took.iter().enumerate() {
            below += count;
            let end = BUCKETS_MS.get(i).map_or("+Inf".into(), |end_ms| (*end_ms as f64 / 1000.0).to_string());
            page.sample(&format!("{name}_bucket"), &format!("{labels},le=\"{end}\""), below);
        }
        page.sample(&format!("{name}_sum"), &labels, tally.took_ms as f64 / 1000.0);
        page.sample(&format!("{name}_count"), &labels, below);
    }
}

fn benches(page: &mut Page, gateway: &Gateway) {
    let count = gateway.live.lock().benches.list(clock::now()).len();
    page.single(
        "freeway_benches",
        "gauge",
        "Keys, models and providers that are not called for a while.",
        count,
    );
    let store = gateway.store.health();
    page.single(
        "freeway_store_ok",
        "gauge",
        "Whether the disk takes what is written.",
        u8::from(store.trouble.is_none()),
    );
}

fn of_server(page: &mut Page, figures: &Figures) {
    let gauges = [
        ("freeway_connections", "Open connections of clients.", figures.connections),
        ("freeway_workers_busy", "Workers that call upstreams.", figures.workers.busy),
        ("freeway_workers_queued", "Requests that wait for a worker.", figures.workers.queued),
        ("freeway_body_bytes", "Memory held by request bodies.", figures.body_bytes),
    ];
    for (name, help, value) in gauges {
        page.single(name, "gauge", help, value);
    }
    let counters = [
        (
            "freeway_connections_turned_away_total",
            "Connections refused for their number.",
            figures.turned_away,
        ),
        ("freeway_heads_refused_total", "Requests refused for the form of their head.", figures.refused),
        ("freeway_panics_total", "Failures of the program itself.", figures.panics),
    ];
    for (name, help, value) in counters {
        page.single(name, "counter", help, value);
    }
}

/// One label; what stands in it is escaped as the format asks for.
fn label(name: &str, value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("{name}=\"{value}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        assert_eq!(label("model", "a\"b\\c\nd"), r#"model="a\"b\\c\nd""#);
    }
}
