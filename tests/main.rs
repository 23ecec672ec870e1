//! The end-to-end tests, in one binary. A new test goes where its subject is; a fault that was met in the wild is named
//! after its case or fault id.

/// The parts that tests are made of.
mod harness;

/// The built program, from socket to socket.
mod e2e {
    /// Settings, alerts and previews, for the owner.
    mod admin;
    /// Questions in other words.
    mod alike;
    /// What happened, in sums and by the request: equal to the traffic, and kept.
    mod analytics;
    /// Backups, and the way back.
    mod backup;
    /// Benches, and what lifts them.
    mod benches;
    /// The blame table, row by row: who is called, who is benched for how long, and what comes next.
    mod blame;
    /// Pages of other origins, and names that are not ours.
    mod browsers;
    /// Answers from memory: which requests get one, and what it looks like.
    mod cache;
    /// Whole answers, and what reaches the upstream of a request.
    mod chat;
    /// The commands of the terminal.
    mod cli;
    /// Client keys: made, listed, confined, revoked.
    mod clients;
    /// A wall clock that is unset, or steps.
    mod clock;
    /// `make install`, the systemd unit, the container files.
    mod deploy;
    /// What is amiss, whom a request would ask, what a provider file lacks.
    mod doctor;
    /// Vectors.
    mod embeddings;
    /// What clients are told when nothing else can be done.
    mod errors;
    /// From one candidate to the next.
    mod failover;
    /// Streams in the midst of their answers.
    mod flows;
    /// A home whose network is gone, half there, or led elsewhere.
    mod home_network;
    /// Probes, and passes over all keys.
    mod key_health;
    /// The keys of clients, and the key pools of providers.
    mod keys;
    /// Gateways in private networks, and clients on other addresses of them.
    mod lan;
    /// A client that goes away, at every moment of its request.
    mod leaving;
    /// Limits of callers, and what prompts are looked through for.
    mod limits;
    /// The log as it happens.
    mod live_log;
    /// Figures for Prometheus.
    mod metrics;
    /// The model list, and what model strings mean.
    mod models;
    /// Calls on their way to an upstream: connections, addresses, proxies.
    mod network;
    /// Odd providers, each added by one file.
    mod odd_providers;
    /// Who comes first, by each strategy.
    mod orderings;
    /// What the owner changes beside the files.
    mod overrides;
    /// The owner's views.
    mod owner;
    /// The page's files.
    mod page;
    /// How long upstreams are waited for.
    mod patience;
    /// Limits: reserved, settled, shared, kept.
    mod quota;
    /// Conversations that are made to fit the model that serves.
    mod refit;
    /// Provider files, variables and model lists while the gateway runs.
    mod registry;
    /// Provider keys stay inside.
    mod secrets;
    /// Under a service manager: readiness, watchdog, reload, stop.
    mod service;
    /// Stored conversations.
    mod sessions;
    /// The owner's right, and how wrong keys are slowed down.
    mod signin;
    /// How event streams end, well or not, and what fills their silences.
    mod sse_ends;
    /// How event streams are cut into lines, events and packets.
    mod sse_framing;
    /// What counts as output of a stream, and what each of its chunks carries.
    mod sse_output;
    /// Token counts of streams.
    mod sse_usage;
    /// What a full, closed or damaged disk does, and a kill.
    mod storage;
    /// The last answer, by what would help.
    mod terminal;
    /// Hostile and unlucky clients, on raw sockets.
    mod transport;
    /// Upstreams that send too much, too little or somewhere else.
    mod upstream_bounds;
    /// Token counts.
    mod usage;
    /// Provider keys that are pasted, imported, exported, and how they are kept.
    mod vault;
}

/// The semantic cache over the vectors of a real model.
mod embeddings;

/// The inputs that fuzzing has found worth keeping.
mod fuzz;

/// The mock upstream and the harness, tried against each other.
mod mock_upstream_itself;

/// Routing against made-up worlds, over virtual days.
mod sim;

/// The rules of the house that a compiler does not know.
mod tidy;
