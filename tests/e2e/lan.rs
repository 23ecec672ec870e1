//! Other addresses of the network: `freeway init --lan` and nothing else serves them, and none can take the places of
//! all. Each test has a network of its own.
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, Command, Stdio};

use crate::harness::*;

/// The gateway of `init --lan`, and its peer.
const GATEWAY: &str = "10.77.0.1:8787";
const PEER: &str = "10.77.0.2";

#[test]
fn after_init_lan_a_peer_is_served_by_address_and_by_name() {
    let set_up = "ip link set lo up && ip addr add 10.77.0.1/24 dev lo && ip addr add 10.77.0.2/24 dev lo";
    in_private_network(set_up, || {
        let alpha = mock("alpha");
        let mut terminal = Terminal::new();
        terminal.provider(&provider(&alpha));
        let (code, made) = terminal.json("init --lan --json");
        assert_eq!((code, &made["baseUrl"]), (Some(0), &json!(format!("http://{GATEWAY}/v1"))), "{made}");
        let key = made["key"].as_str().expect("a key");
        let _served = serve(&terminal);
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("the kernel tells it");
        let local = format!("{}.local:8787", name.trim().split('.').next().expect("a first part"));
        for host in [GATEWAY, &local] {
            assert_eq!(status(host, Some(key)), 200, "{host}");
            assert_eq!(status(host, None), 401, "{host}");
            assert_eq!(status(host, Some("fw-wrong")), 401, "{host}");
        }
        // The name is known by itself, and not because the key lifts the rule.
        assert_eq!(status("evil.example", None), 421);
        assert_eq!(chats(&alpha).len(), 2);
    });
}

/// A gateway that is killed with its test.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        drop((self.0.kill(), self.0.wait()));
    }
}

fn serve(terminal: &Terminal) -> Served {
    let mut child = Command::new(env!("CARGO_BIN_EXE_freeway"))
        .arg("serve")
        .current_dir(terminal.path())
        .env_clear()
        .env("ALPHA_API_KEY", "alpha-key")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the built program starts");
    let mut out = BufReader::new(child.stdout.take().expect("piped above"));
    let served = Served(child);
    let mut line = String::new();
    out.read_line(&mut line).expect("a pipe can be read");
    assert!(line.contains("listening on http://0.0.0.0:8787"), "{line}");
    served
}

/// The status of a chat that the peer asks for by this host.
fn status(host: &str, key: Option<&str>) -> u16 {
    let request = Request::chat(&hello("auto")).header("host", host).header("x-stainless-lang", "python");
    let request = key.into_iter().fold(request, |request, key| request.key(key));
    let gateway = GATEWAY.parse().expect("an address");
    Wire::connect_from(PEER.parse().expect("an address"), gateway).ask(&request).status()
}

/// Two households of IPv6, a neighbour of IPv4, and the gateway between them.
const HOUSEHOLDS: &str = "ip link set lo up && \
    for a in 2001:db8:0:a::1 2001:db8:0:a::2 2001:db8:0:a:ffff::3 2001:db8:0:b::1; do \
        ip -6 addr add $a/128 dev lo nodad || exit; done && \
    for n in $(seq 1 20); do ip addr add 10.77.0.$n/32 dev lo || exit; done && ulimit -n 20000";
const KEY: &str = "fw-lan";

/// A gateway for the whole network with these `server` settings, and its address for peers of a family.
fn on_the_lan(server: Value) -> (MockUpstream, Gateway, impl Fn(&str) -> Wire) {
    let alpha = mock("alpha");
    let gateway = Gateway::builder()
        .provider(provider(&alpha))
        .env("FREEWAY_HOST", "::")
        .client_key(KEY)
        .settings(json!({"server": server}))
        .start();
    let port = gateway.addr().port();
    let from = move |peer: &str| {
        let peer: IpAddr = peer.parse().expect("an address");
        let host = if peer.is_ipv4() { "10.77.0.1" } else { "2001:db8:0:a::1" };
        Wire::connect_from(peer, SocketAddr::new(host.parse().expect("an address"), port))
    };
    (alpha, gateway, from)
}

fn chat() -> Request {
    Request::chat(&hello("m")).key(KEY)
}

#[test]
fn an_ipv6_household_and_an_ipv4_address_have_their_places_and_no_more() {
    in_private_network(HOUSEHOLDS, || {
        let (_alpha, gateway, from) = on_the_lan(json!({"perAddress": 6}));
        // What has been answered once has its place for certain.
        let seated = |peer: &str| {
            let mut wire = from(peer);
            wire.ask(&Request::get("/healthz")).ok();
            wire
        };
        let turned_away = |peer: &str| {
            let mut wire = from(peer);
            let answer = wire.answer().error(503, "overloaded");
            assert!(answer.text().contains("one address"), "{answer}");
            wire.expect_closed();
        };
        let household = ["2001:db8:0:a::1", "2001:db8:0:a::2", "2001:db8:0:a:ffff::3"];
        let mut held: Vec<Wire> = household.iter().chain(&household).map(|peer| seated(peer)).collect();
        household.iter().for_each(|peer| turned_away(peer));
        // The next household, neighbours of IPv4 and this machine are not theirs to shut out.
        seated("2001:db8:0:b::1").ask(&chat()).ok();
        let other: Vec<Wire> = (0..6).map(|_| seated("10.77.0.2")).collect();
        turned_away("10.77.0.2");
        seated("10.77.0.3").ask(&chat()).ok();
        drop(held.pop());
        eventually("a place is free again", || {
            let mut wire = from(household[0]);
            drop(wire.try_send(chat().bytes()));
            wire.try_head().is_some_and(|head| head.status == 200)
        });
        drop((held, other));
        assert!(gateway.peak_rss_kib() < 64 * 1024);
    });
}

#[test]
fn two_thousand_idle_connections_are_offered_and_everybody_else_is_served() {
    in_private_network(HOUSEHOLDS, || {
        let (_alpha, gateway, from) = on_the_lan(json!({"headMs": 600_000, "idleMs": 600_000}));
        let near = || Wire::connect(SocketAddr::new([127, 0, 0, 1].into(), gateway.addr().port()));
        near().ask(&chat()).ok();
        let mut crowd = Vec::new();
        for number in 0..2_000 {
            // From twenty addresses, each within its own cap; half of them begin a head that never ends.
            let mut wire = from(&format!("10.77.0.{}", number % 19 + 2));
            if number % 2 == 0 {
                drop(wire.try_send("GET /v1/models HTTP/1.1\r\nx: "));
            }
            crowd.push(wire);
            if number % 100 == 0 {
                near().ask(&chat()).ok();
                from("2001:db8:0:b::1").ask(&chat()).ok();
            }
        }
        near().ask(&chat()).ok();
        from("2001:db8:0:b::1").ask(&chat()).ok();
        let (descriptors, threads) = (gateway.descriptors(), gateway.threads());
        assert!(descriptors < 4 * 1_024 + 64 && threads < 2 * 1_024, "{descriptors} {threads}");
        let peak = gateway.peak_rss_kib();
        assert!(peak < 64 * 1024, "{peak} KiB were resident");
        drop(crowd);
        eventually("they are gone", || gateway.descriptors() < 100);
        near().ask(&chat()).ok();
    });
}

#[test]
fn what_a_trusted_proxy_tells_counts_and_what_others_tell_does_not() {
    in_private_network(HOUSEHOLDS, || {
        let alpha = mock("alpha");
        let gateway = Gateway::builder()
            .provider(provider(&alpha))
            .env("FREEWAY_HOST", "0.0.0.0")
            .client_key(KEY)
            .settings(json!({"trustedProxies": ["10.77.0.2"], "guard": {"perIp": {"rpm": 2}}}))
            .start();
        let gateway = SocketAddr::new([10, 77, 0, 1].into(), gateway.addr().port());
        let ask = |peer: &str, told: &str| {
            let mut wire = Wire::connect_from(peer.parse().expect("an address"), gateway);
            wire.ask(&chat().header("x-forwarded-for", told)).status()
        };
        let proxy = "10.77.0.2";
        // The rightmost hop that is no proxy of ours is the client, whatever stands before it.
        assert_eq!([ask(proxy, "192.0.2.1"), ask(proxy, "6.6.6.6, 192.0.2.1")], [200, 200]);
        assert_eq!(ask(proxy, "192.0.2.9, 192.0.2.1"), 429);
        assert_eq!(ask(proxy, "192.0.2.1, 10.77.0.2"), 429);
        assert_eq!(ask(proxy, &format!("{}192.0.2.1", "6.6.6.6, ".repeat(60))), 429);
        assert_eq!(ask(proxy, "192.0.2.2"), 200);
        // Households count as one here, too.
        let household = ["2001:db8:1::1", "2001:db8:1::2", "\"[2001:db8:1::3]:99\""];
        assert_eq!(household.map(|told| ask(proxy, told.trim_matches('"'))), [200, 200, 429]);
        // Who is not trusted has its own address, whatever it says.
        assert_eq!(
            ["192.0.2.5", "192.0.2.6", "192.0.2.7"].map(|told| ask("10.77.0.3", told)),
            [200, 200, 429]
        );
    });
}
