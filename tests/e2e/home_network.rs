//! A home whose network is gone, half there, or led elsewhere. Each test has a network of its own, in which it takes the
//! addresses of upstreams away and gives them back.
use std::net::UdpSocket;

use crate::harness::*;

/// Loopback and nothing else: no route leads anywhere.
const BARE: &str = "ip link set lo up";
/// What the documentation networks of RFC 5737 stand for here: somewhere in the internet.
const FAR: [&str; 3] = ["198.51.100.1", "198.51.100.2", "198.51.100.3"];

/// Connects or cuts the way to these addresses.
fn network(verb: &str, addresses: &[&str]) {
    for address in addresses {
        sh(&format!("ip addr {verb} {address}/32 dev lo"));
    }
}

/// Puts a text in the place of a file of the system's, in this namespace alone.
struct Replaced(tempfile::NamedTempFile);

impl Replaced {
    fn file(path: &str, text: &str) -> Replaced {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        // The gateway may run as somebody who cannot read what is private to its tester.
        sh(&format!("chmod 644 {0} && mount --bind {0} {path}", file.path().display()));
        let replaced = Replaced(file);
        replaced.say(text);
        replaced
    }

    /// Overwrites it in place, since another file would not be the mounted one.
    fn say(&self, text: &str) {
        std::fs::write(self.0.path(), text).expect("a temporary file");
    }
}

/// An upstream at an address that is not this machine's, as far as the gateway can tell.
fn far(name: &str, address: &str) -> MockUpstream {
    mock_with(MockOptions { name: name.into(), host: address.into(), ..MockOptions::default() })
}

/// Fails unless nobody is benched.
#[track_caller]
fn nobody_is_benched(gateway: &Gateway) {
    let benches = gateway.get("/api/benches").ok().at("/benches");
    assert_eq!(benches, json!([]));
}

/// Fails unless chats and streams are refused because this box has no network, and nobody is to blame.
#[track_caller]
fn is_offline(gateway: &Gateway) {
    for _ in 0..3 {
        let answer = gateway.chat("m").error(503, "offline");
        assert_eq!(answer.header("retry-after"), Some("5"), "{answer}");
        gateway.stream("m").error(503, "offline");
    }
    nobody_is_benched(gateway);
    let ready = gateway.get("/readyz");
    assert_eq!((ready.status(), ready.at("/reasons/0")), (503, json!("offline")), "{ready}");
    let alerts = gateway.get("/api/alerts").ok();
    assert!(alerts.text().contains("no network"), "{alerts}");
}

/// Takes the network away from a gateway over so many upstreams, twice, and gives it back.
fn goes_and_returns(upstreams: usize) {
    let far_ones = &FAR[..upstreams];
    network("add", far_ones);
    let names = ["alpha", "beta", "gamma"];
    let mocks: Vec<MockUpstream> = names.iter().zip(far_ones).map(|(name, at)| far(name, at)).collect();
    let near = mock("near");
    let gateway = mocks
        .iter()
        .map(provider)
        .fold(Gateway::builder(), Builder::provider)
        .provider(provider(&near).model("near-one"))
        .start();
    for round in 0..2 {
        // A connection waits in the pool when the network goes.
        gateway.chat("m").ok().served_by("alpha");
        network("del", far_ones);
        is_offline(&gateway);
        gateway.chat("near-one").ok().served_by("near");
        network("add", far_ones);
        gateway.chat("m").ok().served_by("alpha").after_attempts(1);
        assert_eq!(gateway.get("/readyz").status(), 200, "round {round}");
        nobody_is_benched(&gateway);
    }
    let calls: usize = mocks.iter().map(|mock| chats(mock).len()).sum();
    assert_eq!(calls, 4, "none was called in vain, or twice");
}

#[test]
fn with_the_network_gone_nobody_is_benched_and_the_first_request_after_is_served() {
    in_private_network(BARE, || goes_and_returns(3));
}

#[test]
fn one_provider_tells_a_dead_network_as_well_as_many() {
    in_private_network(BARE, || goes_and_returns(1));
}

#[test]
fn a_gateway_that_starts_before_its_network_serves_when_that_comes() {
    in_private_network(BARE, || {
        network("add", &FAR);
        let alpha = far("alpha", FAR[0]);
        network("del", &FAR);
        let gateway = Gateway::over([provider(&alpha)]);
        is_offline(&gateway);
        network("add", &FAR);
        gateway.chat("m").ok().after_attempts(1);
        nobody_is_benched(&gateway);
    });
}

#[test]
fn a_network_that_goes_while_an_answer_is_awaited_blames_nobody() {
    in_private_network(BARE, || {
        network("add", &FAR[..1]);
        let alpha = far("alpha", FAR[0]);
        alpha.script([Step::hang(), Step::ok()]);
        let gateway =
            Gateway::over([provider(&alpha).set("timeouts", json!({"firstByteMs": 1_500, "idleMs": 1_500}))]);
        let mut asker = gateway.wire();
        asker.send(Request::chat(&hello("m")).bytes());
        eventually("it is being asked", || chats(&alpha).len() == 1);
        network("del", &FAR[..1]);
        asker.answer().error(503, "offline");
        nobody_is_benched(&gateway);
        network("add", &FAR[..1]);
        gateway.chat("m").ok();
    });
}

/// A provider that is known by name, as nearly all are.
fn named(mock: &MockUpstream, name: &str) -> Provider {
    Provider::at(mock.name(), &format!("http://{name}:{}/v1", mock.port()))
}

#[test]
fn without_a_name_server_nobody_is_benched_and_the_first_request_after_is_served() {
    in_private_network(BARE, || {
        network("add", &FAR);
        let hosts = Replaced::file("/etc/hosts", "127.0.0.1 localhost\n");
        // Nobody listens there, which the resolver learns at once.
        let _resolver = Replaced::file("/etc/resolv.conf", "nameserver 127.0.0.99\noptions attempts:1\n");
        let mocks = ["alpha", "beta", "gamma"].iter().zip(FAR).map(|(name, at)| far(name, at));
        let mocks: Vec<MockUpstream> = mocks.collect();
        let known: String =
            mocks.iter().zip(FAR).map(|(mock, at)| format!("{at} {}.far.example\n", mock.name())).collect();
        let gateway = mocks
            .iter()
            .map(|mock| named(mock, &format!("{}.far.example", mock.name())))
            .fold(Gateway::builder(), Builder::provider)
            .start();
        is_offline(&gateway);
        hosts.say(&known);
        gateway.chat("m").ok().served_by("alpha").after_attempts(1);
        nobody_is_benched(&gateway);
        // Names that are known go on working without it.
        hosts.say("127.0.0.1 localhost\n");
        gateway.chat("m").ok().served_by("alpha").after_attempts(1);
    });
}

#[test]
fn a_name_server_that_hangs_is_waited_for_as_long_as_for_a_connection() {
    in_private_network(BARE, || {
        network("add", &FAR);
        let silent = UdpSocket::bind("127.0.0.99:53").expect("root of the namespace");
        let _hosts = Replaced::file("/etc/hosts", "127.0.0.1 localhost\n");
        let _resolver = Replaced::file("/etc/resolv.conf", "nameserver 127.0.0.99\noptions timeout:30\n");
        let (alpha, beta) = (far("alpha", FAR[0]), far("beta", FAR[1]));
        let slow = named(&alpha, "alpha.far.example").priority(1);
        let gateway = Gateway::over([
            slow.set("timeouts", json!({"connectMs": 400, "firstByteMs": 600_000})),
            provider(&beta).priority(2),
        ]);
        gateway.chat("m").ok().served_by("beta").after_attempts(2);
        silent.set_read_timeout(Some(PATIENCE)).expect("a socket takes options");
        assert!(silent.recv(&mut [0; 512]).is_ok(), "the resolver asked it");
        assert!(chats(&alpha).is_empty());
        gateway.stream("m").well_formed_stream().served_by("beta");
    });
}

#[test]
fn broken_ipv6_falls_back_to_ipv4_and_that_is_remembered() {
    // The route leads to a neighbour that never answers: what is sent there is lost without a word.
    let set_up = "ip link set lo up && ip link add wan type veth peer name far && ip link set wan up && \
                  ip link set far up && ip -6 addr add 2001:db8:9::2/64 dev wan nodad && \
                  ip -6 neigh add 2001:db8:9::1 lladdr 02:00:00:00:00:01 dev wan && ip addr add 198.51.100.1/32 dev lo";
    in_private_network(set_up, || {
        let _hosts = Replaced::file(
            "/etc/hosts",
            "127.0.0.1 localhost\n2001:db8:9::1 alpha.far.example\n198.51.100.1 alpha.far.example\n",
        );
        // No connection is kept, so that each call has to choose an address.
        let options = |name: &str, host: &str, port| MockOptions {
            name: name.into(),
            host: host.into(),
            port,
            keep_alive_ms: Some(1),
            ..MockOptions::default()
        };
        let alpha = mock_with(options("alpha", FAR[0], 0));
        let gateway = Gateway::over([named(&alpha, "alpha.far.example")]);
        gateway.chat("m").ok().served_by("alpha").after_attempts(1);
        eventually("it hangs up", || alpha.open_connections() == 0);
        // Now IPv6 would answer, and at once; but what has worked is what is asked.
        sh("ip -6 neigh del 2001:db8:9::1 dev wan && ip -6 addr add 2001:db8:9::1/128 dev lo nodad");
        let other = mock_with(options("other", "2001:db8:9::1", alpha.port()));
        gateway.chat("m").ok();
        gateway.stream("m").well_formed_stream();
        assert_eq!((chats(&alpha).len(), chats(&other).len()), (3, 0));
        nobody_is_benched(&gateway);
    });
}

#[test]
fn the_page_of_a_captive_portal_is_no_answer_and_shuts_nobody_out() {
    in_private_network(BARE, || {
        network("add", &FAR);
        let page = "<!DOCTYPE html><html><title>Welcome to the hotel</title></html>";
        let portal = || {
            let page = Step { body: Some(page.into()), ..Step::ok() };
            [page.header("content-type", "text/html").times(2), Step::ok()]
        };
        let mocks = ["alpha", "beta", "gamma"].iter().zip(FAR).map(|(name, at)| far(name, at));
        let mocks: Vec<MockUpstream> = mocks.collect();
        mocks.iter().for_each(|mock| mock.script(portal()));
        let gateway = mocks.iter().map(provider).fold(Gateway::builder(), Builder::provider).start();
        for answer in [gateway.chat("m"), gateway.stream("m")] {
            let answer = answer.error(502, "all_attempts_failed").never_says("hotel");
            assert!(answer.text().contains("html"), "what came is named: {answer}");
        }
        // The owner has signed in at the portal.
        gateway.chat("m").ok().served_by("alpha");
    });
}
