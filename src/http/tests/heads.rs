//! What a request head may be, and how it may arrive.
use super::*;

/// What the server says to `request`; it must close after it, and leave nothing behind.
fn check_refused(request: impl AsRef<[u8]>, status: u16) {
    let house = House::new();
    let mut client = house.client();
    client.send(request);
    client.expect_refusal(status);
    drop(client);
    house.expect_served();
    house.expect_nobody();
    assert_eq!(house.figures().refused, 1);
}

#[test]
fn http_2_is_refused_and_leaks_nothing() {
    check_refused("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505);
    check_refused("GET /now HTTP/2.0\r\nHost: g\r\n\r\n", 505);
    check_refused("GET /now HTTP/3.0\r\nHost: g\r\n\r\nGET /now HTTP/1.1\r\nHost: g\r\n\r\n", 505);
}

#[test]
fn ambiguous_framing_is_refused_with_whatever_follows_it() {
    let behind = "abcGET /now HTTP/1.1\r\nHost: g\r\n\r\n";
    for fields in [
        "Content-Length: 3\r\nContent-Length: 30",
        "Content-Length: 3\r\nContent-Length: 3",
        "Content-Length: 30, 30",
        "Content-Length: abc",
        "Content-Length: 0x3",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 3",
        "Content-Length: 3\r\nTransfer-Encoding: chunked",
        "Content-Length : 3",
        " Content-Length: 3",
    ] {
        check_refused(format!("POST /echo HTTP/1.1\r\nHost: g\r\n{fields}\r\n\r\n{behind}"), 400);
    }
    check_refused(format!("POST /echo HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: gzip\r\n\r\n{behind}"), 501);
}

#[test]
fn what_is_no_request_is_refused_at_once() {
    check_refused(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400);
    check_refused("GET /now HTTP/1.1\nHost: g\n\n", 400);
    check_refused("GET /now HTTP/1.1\r\n\r\n", 400);
    check_refused("GET /now HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400);
    check_refused(format!("GET /{} HTTP/1.1", "x".repeat(9000)), 414);
}

#[test]
fn an_endless_head_is_bounded() {
    let house = House::new();
    let mut client = house.client();
    client.send("GET /now HTTP/1.1\r\nHost: g\r\nX: ");
    let block = [b'y'; 16 * 1024];
    let sent = (0..4096).take_while(|_| client.try_send(block)).count();
    // The answer came while we were still sending; what our kernel has of it depends on when the server closed.
    assert!(sent < 4096, "64 MiB of one header were taken");
    house.expect_served();
    house.expect_nobody();
}

#[test]
fn a_long_head_is_served_and_a_longer_one_refused() {
    let house = House::new();
    let mut client = house.client();
    let long = |count: usize| {
        format!("GET /now HTTP/1.1\r\nHost: g\r\n{}\r\n", format!("X: {}\r\n", "y".repeat(995)).repeat(count))
    };
    client.send(long(60));
    assert_eq!(client.answer().0, 200);
    client.send(long(66));
    client.expect_refusal(431);
}

#[test]
fn a_head_may_come_byte_by_byte() {
    let house = House::new();
    let mut client = house.client();
    for byte in post("/echo", "hi").bytes() {
        client.send([byte]);
    }
    assert_eq!(client.answer(), (200, "hi".into()));
    client.send(NOW);
    assert_eq!(client.answer().0, 200);
}

#[test]
fn http_13_a_head_that_drips_meets_a_total_deadline() {
    let house = House::with(|settings| settings.head_ms = 300);
    let mut client = house.client();
    let start = Instant::now();
    client.send("GET /now HTTP/1.1\r\nHost: g\r\nX: ");
    while start.elapsed() < Duration::from_millis(200) {
        client.send("y");
        std::thread::sleep(Duration::from_millis(10));
    }
    client.expect_refusal(408);
    drop(client);
    assert!(start.elapsed() < Duration::from_secs(5));
    house.expect_nobody();
}

#[test]
fn http_13_slow_and_idle_clients_hold_up_nobody() {
    let house = House::with(|settings| settings.connections = Some(400));
    let slow: Vec<_> = (0..200)
        .map(|_| {
            let mut client = house.client();
            client.send("GET /now HTTP/1.1\r\nX: ");
            client
        })
        .collect();
    let idle: Vec<_> = (0..50).map(|_| house.client()).collect();
    house.expect_served();
    eventually("all are connected", || house.figures().connections >= 250);
    drop((slow, idle));
    house.expect_nobody();
}

#[test]
fn half_a_head_costs_no_processor_time() {
    if !is_alone("heads::half_a_head_costs_no_processor_time", "") {
        return;
    }
    let house = House::with(|settings| settings.head_ms = 3_000);
    let mut plain = house.client();
    plain.send("GET /now HTTP/1.1\r\n");
    plain.send("Host: g\r\n");
    // Urgent data makes every wait for more return at once.
    let mut urgent = house.client();
    urgent.send("GET /now HTTP/1.1\r\nHo");
    socket2::SockRef::from(&urgent.socket).send_out_of_band(b"!").unwrap();
    urgent.send("st: g\r\n");
    eventually("they are being read", || house.figures().connections == 2);
    let before = reader_time();
    std::thread::sleep(Duration::from_millis(600));
    assert!(reader_time() - before < Duration::from_millis(50));
    plain.send("\r\n");
    assert_eq!(plain.answer().0, 200);
    urgent.expect_refusal(408);
}

#[test]
fn a_client_that_leaves_amid_its_head_is_forgotten() {
    let house = House::new();
    let mut client = house.client();
    client.send("GET /now HTTP/1.1\r\nHo");
    client.socket.shutdown(std::net::Shutdown::Write).unwrap();
    client.expect_close();
    house.expect_nobody();
}

#[test]
fn an_idle_connection_is_closed_silently() {
    let house = House::with(|settings| settings.idle_ms = 150);
    let mut fresh = house.client();
    let mut used = house.client();
    used.send(NOW);
    assert_eq!(used.answer().0, 200);
    let mut worked = house.client();
    worked.send(post("/work", "abc"));
    assert_eq!(worked.answer(), (200, "3".into()));
    for client in [&mut fresh, &mut used, &mut worked] {
        client.expect_close();
    }
    house.expect_nobody();
}

#[test]
fn a_request_that_takes_longer_than_the_idle_time_is_answered() {
    let house = House::with(|settings| settings.idle_ms = 100);
    let mut client = house.client();
    client.send(post("/hold", "late"));
    house.expect_news("began");
    std::thread::sleep(Duration::from_millis(350));
    house.release.send(()).unwrap();
    assert_eq!(client.answer(), (200, "late".into()));
    client.expect_close();
}

#[test]
fn empty_lines_before_a_request_are_overlooked() {
    let house = House::new();
    let mut client = house.client();
    client.send(format!("\r\n\r\n{NOW}"));
    assert_eq!(client.answer().0, 200);
    client.send("\r\n");
    client.send(post("/echo", "after a stray line end"));
    assert_eq!(client.answer().1, "after a stray line end");
}

#[test]
fn heads_that_tiny_http_would_refuse_are_served() {
    let house = House::new();
    let mut client = house.client();
    for field in [
        "X.Dotted: 1",
        "X-Tab: a\tb",
        "X-Name: caf\u{e9}",
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c",
    ] {
        client.send(format!("POST /echo HTTP/1.1\r\nHost: g\r\n{field}\r\nContent-Length: 2\r\n\r\nhi"));
        assert_eq!(client.answer(), (200, "hi".into()), "{field}");
    }
    client.send(b"POST /echo HTTP/1.1\r\nHost: g\r\nX: \xe9\r\nContent-Length: 2\r\n\r\nho");
    assert_eq!(client.answer(), (200, "ho".into()));
}

#[test]
fn ipv6_clients_are_served() {
    let house = House::on("[::1]:0", &settings());
    let mut client = house.client();
    client.send(NOW);
    let (status, body) = client.answer();
    assert_eq!((status, body), (200, format!("now {}", client.socket.local_addr().unwrap())));
    let both = House::on("[::]:0", &settings());
    let mut client = Client::connect(SocketAddr::from(([127, 0, 0, 1], both.address.port())));
    client.send(NOW);
    assert_eq!(client.answer(), (200, format!("now {}", client.socket.local_addr().unwrap())));
}
