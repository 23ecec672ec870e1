//! Bodies: framing, sizes, compression, deadlines, the shared budget.
use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn coded(path: &str, coding: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: g\r\nContent-Encoding: {coding}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

#[test]
fn bodies_of_all_sizes_come_back_as_sent() {
    let house = House::new();
    let mut client = house.client();
    for size in [0, 1, 900, 1023, 1024, 1025, 2000, 3900, 4096, 5000, 70_000, 1 << 20] {
        let body: String = (0..size).map(|i| char::from(b'a' + (i % 23) as u8)).collect();
        client.send(post("/echo", &body));
        let (status, echoed) = client.answer();
        assert_eq!((status, echoed == body), (200, true), "{size}");
    }
}

#[test]
fn bodies_may_come_in_pieces() {
    let house = House::new();
    let mut client = house.client();
    for (size, piece) in [(500, 100), (1500, 400), (200_000, 30_000)] {
        let request = post("/echo", &"x".repeat(size));
        for part in request.as_bytes().chunks(piece) {
            client.send(part);
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(client.answer().1.len(), size);
    }
}

#[test]
fn chunked_bodies_are_decoded_and_the_connection_goes_on() {
    let house = House::new();
    let mut client = house.client();
    let head = "POST /echo HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n";
    client.send(format!("{head}3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nT: 1\r\n\r\n"));
    assert_eq!(client.answer(), (200, "abcde".into()));
    for byte in format!("{head}3\r\nfgh\r\n0\r\n\r\n").bytes() {
        client.send([byte]);
    }
    assert_eq!(client.answer(), (200, "fgh".into()));
    let large = "y".repeat(300_000);
    client.send(format!("{head}{:x}\r\n{large}\r\n0\r\n\r\n", large.len()));
    assert_eq!(client.answer().1.len(), large.len());
    client.send(format!("{head}3\r\nabc\r\n0\r\n\r\n{}", post("/work", "right behind")));
    assert_eq!(client.answer(), (200, "abc".into()));
    assert_eq!(client.answer(), (200, "12".into()));
    client.send(post("/work", "by tiny_http again"));
    assert_eq!(client.answer(), (200, "18".into()));
    client.send(NOW);
    assert_eq!(client.answer().0, 200);
}

#[test]
fn broken_and_oversize_chunks_are_refused() {
    for (body, status) in [
        ("zz\r\n", 400),
        ("3\nabc\n0\n\n", 400),
        ("3\r\nabcd\r\n0\r\n\r\n", 400),
        ("100001\r\n", 413),
        ("ffffffffffffffffff\r\n", 413),
    ] {
        let house = House::new();
        let mut client = house.client();
        client.send(format!("POST /echo HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n{body}"));
        client.expect_refusal(status);
        drop(client);
        house.expect_nobody();
    }
}

#[test]
fn an_endless_chunk_size_line_is_bounded() {
    let house = House::new();
    let mut client = house.client();
    client.send("POST /echo HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n1;");
    let sent = (0..4096).take_while(|_| client.try_send([b'x'; 16 * 1024])).count();
    assert!(sent < 4096, "64 MiB of one line were taken");
    house.expect_served();
    house.expect_nobody();
    assert_eq!(house.figures().body_bytes, 0);
}

#[test]
fn http_07_a_body_above_the_limit_is_refused_early_and_readably() {
    let house = House::new();
    for length in ["1048577", "9223372036854775807", "18446744073709551615", "99999999999999999999999"] {
        let mut client = house.client();
        client.send(format!("POST /echo HTTP/1.1\r\nHost: g\r\nContent-Length: {length}\r\n\r\n"));
        let (status, body) = client.answer();
        assert_eq!((status, &expect_error(&body)["error"]["code"]), (413, &"payload_too_large".into()));
        assert_eq!((client.header("connection"), client.header("x-request-id")), (Some("close"), Some("r1")));
        client.send("some of it");
        client.socket.shutdown(std::net::Shutdown::Write).unwrap();
        client.expect_close();
    }
    house.expect_served();
    house.expect_nobody();
}

#[test]
fn an_answer_before_the_body_can_be_read_though_the_client_sends_on() {
    let house = House::new();
    let mut client = house.client();
    client.send("POST /denied HTTP/1.1\r\nHost: g\r\nContent-Length: 900000\r\n\r\n");
    client.send([b'x'; 200_000]);
    let (status, _) = client.answer();
    assert_eq!((status, client.header("www-authenticate")), (401, Some("Bearer")));
    assert!(client.try_send([b'x'; 200_000]));
    let start = Instant::now();
    client.expect_close();
    assert!(start.elapsed() < Duration::from_secs(5));
    house.expect_nobody();
}

#[test]
fn a_client_that_never_stops_sending_is_not_listened_to_for_long() {
    let house = House::new();
    let mut client = house.client();
    client.send("POST /denied HTTP/1.1\r\nHost: g\r\nContent-Length: 99000000000\r\n\r\n");
    let sent = (0..1024).take_while(|_| client.try_send([b'x'; 64 * 1024])).count();
    assert!(sent < 1024, "64 MiB were read after the answer");
    house.expect_nobody();
}

#[test]
fn a_refused_request_that_has_come_whole_keeps_its_connection() {
    let house = House::new();
    let mut client = house.client();
    client.send(post("/denied", "a small body"));
    assert_eq!(client.answer().0, 401);
    assert_eq!(client.header("connection"), None);
    client.send(NOW);
    assert_eq!(client.answer().0, 200);
}

#[test]
fn http_01_a_client_that_expects_100_gets_it_or_the_final_answer() {
    let house = House::new();
    let expecting = |path: &str, length: usize| {
        format!("POST {path} HTTP/1.1\r\nHost: g\r\nContent-Length: {length}\r\nExpect: 100-continue\r\n\r\n")
    };
    let mut client = house.client();
    client.send(expecting("/echo", 4));
    assert_eq!(client.answer(), (100, String::new()));
    assert_eq!(client.head, "HTTP/1.1 100 Continue\r\n\r\n");
    client.send("body");
    assert_eq!(client.answer(), (200, "body".into()));
    // One that does not wait gets no interim answer.
    client.send(expecting("/echo", 4) + "more");
    assert_eq!(client.answer(), (200, "more".into()));
    for (path, length, status) in [("/denied", 5_000_000, 401), ("/echo", 5_000_000, 413)] {
        let mut client = house.client();
        client.send(expecting(path, length));
        assert_eq!(client.answer().0, status);
        assert_eq!(client.header("connection"), Some("close"));
        client.expect_close();
    }
    let mut client = house.client();
    client.send("POST /echo HTTP/1.1\r\nHost: g\r\nContent-Length: 4\r\nExpect: a-miracle\r\n\r\n");
    client.expect_refusal(417);
}

#[test]
fn http_02_compressed_bodies() {
    let house = House::new();
    let mut client = house.client();
    client.send(coded("/echo", "gzip", &gzip(b"{\"hello\":1}")));
    assert_eq!(client.answer(), (200, "{\"hello\":1}".into()));
    client.send(coded("/echo", "identity", b"as it is"));
    assert_eq!(client.answer(), (200, "as it is".into()));
    for coding in ["zstd", "br", "foo", "gzip, gzip"] {
        client.send(coded("/echo", coding, b"secret"));
        let (status, body) = client.answer();
        assert_eq!((status, body.contains("secret")), (415, false), "{coding}");
        expect_error(&body);
    }
    let mut liar = house.client();
    liar.send(coded("/echo", "gzip", b"{\"secret\":1}"));
    let (status, body) = liar.answer();
    assert_eq!((status, body.contains("secret")), (400, false));
    expect_error(&body);
    let mut bomb = house.client();
    bomb.send(coded("/echo", "gzip", &gzip(&vec![0; 100 << 20])));
    bomb.expect_refusal(413);
    assert_eq!(house.figures().body_bytes, 0);
}

#[test]
fn http_13_a_body_that_drips_meets_a_total_deadline() {
    for head in [
        "Content-Length: 500",
        "Content-Length: 50000",
        "Transfer-Encoding: chunked",
        "X.Odd: 1\r\nContent-Length: 50000",
    ] {
        let house = House::with(|settings| settings.body_ms = 300);
        let mut client = house.client();
        let start = Instant::now();
        client.send(format!("POST /echo HTTP/1.1\r\nHost: g\r\n{head}\r\n\r\n0"));
        while start.elapsed() < Duration::from_millis(200) {
            client.send("0");
            std::thread::sleep(Duration::from_millis(20));
        }
        client.expect_refusal(408);
        drop(client);
        assert!(start.elapsed() < Duration::from_secs(5), "{head}");
        house.expect_nobody();
    }
}

#[test]
fn a_client_that_leaves_amid_its_body_is_forgotten() {
    let house = House::new();
    for head in ["Content-Length: 500", "Content-Length: 50000", "Transfer-Encoding: chunked"] {
        let mut client = house.client();
        client.send(format!("POST /work HTTP/1.1\r\nHost: g\r\n{head}\r\n\r\n1"));
        eventually("it is connected", || house.figures().connections == 1);
        client.socket.shutdown(std::net::Shutdown::Write).unwrap();
        client.expect_close();
        house.expect_nobody();
    }
    assert_eq!(house.figures().body_bytes, 0);
}

#[test]
fn bodies_of_all_clients_share_a_budget() {
    let house = House::with(|settings| settings.bodies_in_flight_bytes = 300_000);
    let mut first = house.client();
    first.send(post("/hold", &"x".repeat(200_000)));
    house.expect_news("began");
    assert!(house.figures().body_bytes >= 200_000);
    let mut second = house.client();
    second.send(post("/work", &"x".repeat(200_000)));
    let (status, body) = second.answer();
    assert_eq!((status, &expect_error(&body)["error"]["code"]), (503, &"overloaded".into()));
    assert_eq!(second.header("retry-after"), Some("1"));
    // Announcing a large body takes nothing from the others.
    let mut boaster = house.client();
    boaster.send("POST /work HTTP/1.1\r\nHost: g\r\nContent-Length: 1000000\r\n\r\n");
    house.expect_served();
    house.release.send(()).unwrap();
    assert_eq!(first.answer().0, 200);
    eventually("the budget is free", || house.figures().body_bytes < 100_000);
    second = house.client();
    second.send(post("/work", &"x".repeat(200_000)));
    assert_eq!(second.answer(), (200, "200000".into()));
}

#[test]
fn a_reader_has_room_for_the_deepest_json() {
    let house = House::new();
    let mut client = house.client();
    client.send(post("/depth", &("[".repeat(127) + &"]".repeat(127))));
    assert_eq!(client.answer(), (200, "127".into()));
}
