//! The end-to-end tests, in one binary. A new test goes where its subject is; a fault that was met in the wild is named
//! after its case or fault id.

/// The parts that tests are made of.
mod harness;

/// The built program, from socket to socket.
mod e2e {
    /// Benches, and what lifts them.
    mod benches;
    /// Whole answers, and what reaches the upstream of a request.
    mod chat;
    /// The commands of the terminal.
    mod cli;
    /// Vectors.
    mod embeddings;
    /// What clients are told when nothing else can be done.
    mod errors;
    /// From one candidate to the next, and who is blamed.
    mod failover;
    /// The keys of clients, and the key pools of providers.
    mod keys;
    /// The model list, and what model strings mean.
    mod models;
    /// Calls on their way to an upstream: connections, addresses, proxies.
    mod network;
    /// How event streams end, well or not, and what fills their silences.
    mod sse_ends;
    /// How event streams are cut into lines, events and packets.
    mod sse_framing;
    /// What counts as output of a stream, and what each of its chunks carries.
    mod sse_output;
    /// Token counts of streams.
    mod sse_usage;
    /// The owner's views.
    mod owner;
    /// How long upstreams are waited for.
    mod patience;
    /// Provider files, variables and model lists while the gateway runs.
    mod registry;
    /// Provider keys stay inside.
    mod secrets;
    /// Event streams.
    mod stream;
    /// Hostile and unlucky clients, on raw sockets.
    mod transport;
    /// Upstreams that send too much, too little or somewhere else.
    mod upstream_bounds;
    /// Token counts.
    mod usage;
}

/// The mock upstream and the harness, tried against each other.
mod mock_upstream_itself;

/// Routing against made-up worlds, over virtual days.
mod sim;

/// The rules of the house that a compiler does not know.
mod tidy;
