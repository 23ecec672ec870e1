//! Deadlines, pulses and cuts.
use std::cell::Cell;
use std::sync::mpsc;

use socket2::{Domain, Socket, Type};

use super::*;
use crate::wire::exchange::{FaultKind, Phase};

/// A stream of one event, then silence until the client leaves, which is reported.
fn stalling(head: &'static str) -> (Server, mpsc::Receiver<()>) {
    let (tell, told) = mpsc::channel();
    let server = Server::start(move |_, mut stream| {
        read_request(&mut stream);
        stream.write_all(head.as_bytes()).unwrap();
        wait_for_leave(&mut stream);
        tell.send(()).unwrap();
    });
    (server, told)
}

const STREAM: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n";

/// An address that takes no connection and refuses none: its queue is full.
fn full_queue() -> (Socket, Vec<TcpStream>, SocketAddr) {
    let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    listener.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
    listener.listen(0).unwrap();
    let address = listener.local_addr().unwrap().as_socket().unwrap();
    let mut queued = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(100)) {
        queued.push(stream);
    }
    (listener, queued, address)
}

fn after(ms: u64) -> Instant {
    Instant::now() + Duration::from_millis(ms)
}

/// Cuts a call from another thread, soon.
fn cut_soon(cut: &Arc<Cut>) {
    let cut = Arc::clone(cut);
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        cut.cut();
    });
}

#[test]
fn each_phase_ends_at_the_deadline() {
    let check = |url: &str, body: &[u8], phase: Phase, request_sent: bool| {
        let (client, provider) = (client(), provider(url));
        let asked = Asked { body, watch: Watch::new(after(300)), ..Asked::new(&client, &provider) };
        let began = Instant::now();
        let fault = fault_of(asked.text());
        assert_eq!((fault.kind, fault.phase, fault.request_sent), (FaultKind::Timeout, phase, request_sent));
        let took = began.elapsed();
        assert!(took >= Duration::from_millis(290) && took < Duration::from_secs(3), "{phase:?} {took:?}");
    };
    let (_listener, _queued, full) = full_queue();
    check(&format!("http://{full}"), b"{}", Phase::Connect, false);
    let deaf = Server::start(|_, stream| {
        thread::sleep(PATIENCE);
        drop(stream);
    });
    check(&deaf.url(), &vec![b'x'; 64_000_000], Phase::Send, true);
    check(&deaf.url(), b"{}", Phase::FirstByte, true);
    check(&stalling("HTTP/1.1 2").0.url(), b"{}", Phase::FirstByte, true);
    check(&stalling(STREAM).0.url(), b"{}", Phase::Stream, true);
}

#[test]
fn connecting_has_a_limit_of_its_own() {
    let (_listener, _queued, full) = full_queue();
    let mut provider = provider(&format!("http://{full}"));
    provider.timeouts.connect_ms = 200;
    let began = Instant::now();
    let fault = fault_of(ask(&client(), &provider));
    assert_eq!((fault.kind, fault.phase), (FaultKind::Timeout, Phase::Connect));
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_deadline_may_move_while_an_answer_streams() {
    let server = Server::start(|_, mut stream| {
        read_request(&mut stream);
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        for _ in 0..4 {
            thread::sleep(Duration::from_millis(150));
            stream.write_all(b"x").unwrap();
        }
        wait_for_leave(&mut stream);
    });
    let (client, provider) = (client(), provider(&server.url()));
    let asked = Asked { watch: Watch::new(after(5_000)), ..Asked::new(&client, &provider) };
    let mut reply = asked.send().unwrap();
    let mut seen = 0;
    let fault = loop {
        asked.watch.set_deadline(after(400));
        match reply.body.read(&mut [0; 10]) {
            Ok(read) => seen += read,
            Err(fault) => break fault,
        }
    };
    assert_eq!((seen, fault.kind, fault.phase), (4, FaultKind::Timeout, Phase::Stream));
}

#[test]
fn w11_a_stalled_error_body_ends_at_the_deadline() {
    let (server, left) = stalling("HTTP/1.1 429 Slow\r\nContent-Length: 100\r\n\r\n{\"error\":");
    let (client, provider) = (client(), provider(&server.url()));
    let asked = Asked { watch: Watch::new(after(300)), ..Asked::new(&client, &provider) };
    let mut reply = asked.send().unwrap();
    assert_eq!((reply.status, reply.body.read_some(1000)), (429, b"{\"error\":".to_vec()));
    assert!(!asked.cut.is_cut());
    drop(reply);
    left.recv_timeout(PATIENCE).unwrap();
}

#[test]
fn the_pulse_beats_while_a_call_waits() {
    let check = |head: &'static str, phase: Phase| {
        let (server, _left) = stalling(head);
        let (client, provider) = (client(), provider(&server.url()));
        let asked = Asked { watch: Watch::new(after(600)), ..Asked::new(&client, &provider) };
        let beats = Rc::new(Cell::new(0));
        let count = Rc::clone(&beats);
        asked.watch.set_pulse(Some(after(50)));
        asked.watch.on_pulse(Box::new(move || {
            count.set(count.get() + 1);
            (count.get() < 3).then(|| after(50))
        }));
        let fault = fault_of(asked.text());
        assert_eq!((fault.kind, fault.phase, beats.get()), (FaultKind::Timeout, phase, 3));
    };
    check("", Phase::FirstByte);
    check(STREAM, Phase::Stream);
}

#[test]
fn a_pulse_may_move_the_deadline_and_set_another_pulse() {
    let (server, _left) = stalling("");
    let (client, provider) = (client(), provider(&server.url()));
    let asked = Asked::new(&client, &provider);
    asked.watch.set_pulse(Some(after(50)));
    let watch = Rc::downgrade(&asked.watch);
    asked.watch.on_pulse(Box::new(move || {
        let watch = watch.upgrade()?;
        let inner = Rc::downgrade(&watch);
        watch.on_pulse(Box::new(move || {
            inner.upgrade()?.set_deadline(Instant::now());
            None
        }));
        Some(after(50))
    }));
    assert_eq!(fault_of(asked.text()).kind, FaultKind::Timeout);
}

#[test]
fn a_call_cut_before_it_begins_never_begins() {
    let server = Server::saying(ok("{}"));
    let (client, provider) = (client(), provider(&server.url()));
    let asked = Asked::new(&client, &provider);
    asked.cut.cut();
    let fault = fault_of(asked.text());
    assert_eq!((fault.kind, fault.request_sent), (FaultKind::Cut, false));
    assert_eq!(ask(&client, &provider).unwrap(), "{}");
    let fault = fault_of(asked.text());
    assert_eq!((fault.kind, fault.request_sent), (FaultKind::Cut, false));
    assert_eq!(server.connections(), 1);
}

#[test]
fn a_call_is_cut_while_it_connects() {
    let (_listener, _queued, full) = full_queue();
    let (client, provider) = (client(), provider(&format!("http://{full}")));
    let asked = Asked::new(&client, &provider);
    cut_soon(&asked.cut);
    let began = Instant::now();
    let fault = fault_of(asked.text());
    assert_eq!((fault.kind, fault.phase, fault.request_sent), (FaultKind::Cut, Phase::Connect, false));
    assert!(began.elapsed() < Duration::from_secs(2));
}

#[test]
fn a_call_is_cut_while_it_waits_or_streams_and_the_upstream_notices() {
    let close_delimited = "HTTP/1.1 200 OK\r\n\r\ndata: 1\n\n";
    for (head, phase) in [("", Phase::FirstByte), (STREAM, Phase::Stream), (close_delimited, Phase::Stream)] {
        let (server, left) = stalling(head);
        let (client, provider) = (client(), provider(&server.url()));
        let asked = Asked::new(&client, &provider);
        cut_soon(&asked.cut);
        let began = Instant::now();
        let fault = fault_of(asked.text());
        assert_eq!((fault.kind, fault.phase, fault.request_sent), (FaultKind::Cut, phase, true));
        left.recv_timeout(PATIENCE).unwrap();
        assert!(began.elapsed() < Duration::from_secs(2));
        assert_eq!(client.idle_connections(), 0);
    }
}

#[test]
fn a_call_is_cut_while_it_sends() {
    let server = Server::start(|_, stream| {
        thread::sleep(PATIENCE);
        drop(stream);
    });
    let (client, provider) = (client(), provider(&server.url()));
    let body = vec![b'x'; 64_000_000];
    let asked = Asked { body: &body, ..Asked::new(&client, &provider) };
    cut_soon(&asked.cut);
    let fault = fault_of(asked.text());
    assert_eq!((fault.kind, fault.phase), (FaultKind::Cut, Phase::Send));
}

#[test]
fn a_busy_stream_is_cut_at_once() {
    let server = Server::start(|_, mut stream| {
        read_request(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
        while stream.write_all(b"data: 1\n\n").is_ok() {}
    });
    let (client, provider) = (client(), provider(&server.url()));
    let asked = Asked::new(&client, &provider);
    let mut reply = asked.send().unwrap();
    cut_soon(&asked.cut);
    let fault = loop {
        match reply.body.read(&mut [0; 1000]) {
            Ok(read) => assert!(read > 0),
            Err(fault) => break fault,
        }
    };
    assert_eq!(fault.kind, FaultKind::Cut);
}

#[test]
fn a_late_cut_does_not_touch_a_connection_that_serves_somebody_else() {
    let (go, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let server = Server::start(move |_, mut stream| {
        read_request(&mut stream);
        stream.write_all(ok("1").as_bytes()).unwrap();
        read_request(&mut stream);
        wait.lock().unwrap().recv_timeout(PATIENCE).unwrap();
        stream.write_all(ok("2").as_bytes()).unwrap();
        wait_for_leave(&mut stream);
    });
    let (client, provider) = (client(), provider(&server.url()));
    let first = Asked::new(&client, &provider);
    let mut first_reply = first.send().unwrap();
    assert_eq!(first_reply.body.read_all(10).unwrap(), b"1");
    // The first call is over, although its reply is still at hand.
    let second = Asked::new(&client, &provider);
    let cut = Arc::clone(&first.cut);
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        cut.cut();
        go.send(()).unwrap();
    });
    assert_eq!(second.text().unwrap(), "2");
    assert_eq!((server.connections(), first.cut.is_cut()), (1, true));
}

#[test]
fn the_end_of_an_earlier_call_does_not_let_go_of_a_later_one() {
    let (server, left) = stalling(STREAM);
    let (client, provider) = (client(), provider(&server.url()));
    let asked = Asked::new(&client, &provider);
    let earlier = asked.send().unwrap();
    let mut later = asked.send().unwrap();
    drop(earlier);
    left.recv_timeout(PATIENCE).unwrap();
    cut_soon(&asked.cut);
    assert_eq!(fault_of(later.body.read_all(100)).kind, FaultKind::Cut);
    left.recv_timeout(PATIENCE).unwrap();
}
