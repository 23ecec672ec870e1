//! Clients that go away, wait, or send the next request early.
use std::net::Shutdown;

use socket2::SockRef;

use super::workers::Load;
use super::*;

/// The worker must learn within about a second that its client has left.
fn check_cut(leave: impl FnOnce(Client)) {
    let house = House::new();
    let mut client = house.client();
    client.send(post("/hold", "abc"));
    house.expect_news("began");
    let start = Instant::now();
    leave(client);
    house.expect_news("cut");
    assert!(start.elapsed() < Duration::from_secs(2));
    house.expect_nobody();
    eventually("its worker is free", || house.figures().workers.busy == 0);
}

#[test]
fn http_12_a_departed_client_is_noticed_while_the_worker_runs() {
    check_cut(drop);
}

#[test]
fn a_reset_is_noticed_while_the_worker_runs() {
    check_cut(|client| SockRef::from(&client.socket).set_linger(Some(Duration::ZERO)).unwrap());
}

#[test]
fn half_a_close_counts_as_leaving() {
    let (keep, kept) = channel();
    check_cut(move |client| {
        client.socket.shutdown(Shutdown::Write).unwrap();
        keep.send(client).unwrap();
    });
    drop(kept);
}

#[test]
fn a_client_that_leaves_after_sending_the_next_request_is_noticed_too() {
    check_cut(|mut client| {
        client.send(NOW);
        std::thread::sleep(Duration::from_millis(50));
    });
}

#[test]
fn a_job_whose_client_left_the_queue_learns_of_it() {
    let house = House::with(|settings| settings.workers = 1);
    let mut busy = house.client();
    busy.send(post("/hold", "busy"));
    house.expect_news("began");
    let mut queued = house.client();
    queued.send(post("/hold", "left"));
    eventually("it waits", || house.figures().workers.queued == 1);
    drop(queued);
    // It does not wait for a place any more, since it will not call anybody.
    house.expect_news("began");
    house.expect_news("cut");
    assert_eq!(house.figures().workers, Load { busy: 1, queued: 0 });
    house.release.send(()).unwrap();
    house.expect_news("released");
    assert_eq!(busy.answer().0, 200);
    drop(busy);
    house.expect_nobody();
}

#[test]
fn a_stream_without_a_worker_learns_that_nobody_listens() {
    let house = House::new();
    let mut client = house.client();
    client.send(post("/live", ""));
    client.read_until(|bytes| bytes.ends_with(b": live\n\n\r\n").then_some(1));
    house.expect_served();
    let start = Instant::now();
    drop(client);
    house.expect_news("left");
    assert!(start.elapsed() < Duration::from_secs(2));
    house.expect_nobody();
}

#[test]
fn pipelined_requests_wait_for_their_turn() {
    let house = House::new();
    let mut client = house.client();
    client.send(format!("{}{}{NOW}", post("/echo", "first"), post("/work", "second")));
    assert_eq!(client.answer(), (200, "first".into()));
    assert_eq!(client.answer(), (200, "6".into()));
    assert_eq!(client.answer().0, 200);
    client.send(post("/hold", "third"));
    house.expect_news("began");
    client.send(post("/echo", "fourth"));
    std::thread::sleep(Duration::from_millis(30));
    house.release.send(()).unwrap();
    assert_eq!(client.answer(), (200, "third".into()));
    assert_eq!(client.answer(), (200, "fourth".into()));
}

#[test]
fn a_request_that_was_left_is_the_last_to_be_answered() {
    let house = House::new();
    let mut client = house.client();
    client.send(format!("{}{NOW}", post("/hold", "left")));
    house.expect_news("began");
    client.socket.shutdown(Shutdown::Write).unwrap();
    house.expect_news("cut");
    // It still reads, and would take any answer for that to its first request.
    client.expect_close();
    house.expect_nobody();
}

#[test]
fn requests_that_tiny_http_may_have_read_ahead_are_never_half_seen() {
    // The second request follows so closely that some of it may come while tiny_http reads the first. Then the first
    // answer must close the connection; otherwise the second is served. Nothing else may happen.
    let house = House::new();
    let (mut served, mut closed) = (0, 0);
    for round in 0..300 {
        let mut client = house.client();
        client.send(post("/work", "first"));
        for _ in 0..round * 7 {
            std::hint::spin_loop();
        }
        if !client.try_send(post("/work", "seconds")) {
            continue;
        }
        assert_eq!(client.answer(), (200, "5".into()));
        if client.header("connection") == Some("close") {
            closed += 1;
            client.socket.shutdown(Shutdown::Write).unwrap();
            client.expect_close();
        } else {
            served += 1;
            assert_eq!(client.answer(), (200, "7".into()));
        }
    }
    assert!(served + closed > 0);
    house.expect_nobody();
}

#[test]
fn a_connection_serves_many_requests() {
    let house = House::new();
    let mut client = house.client();
    for i in 0..500 {
        let path = ["/work", "/echo", "/here", "/now"][i % 4];
        client.send(post(path, "x"));
        assert_eq!(client.answer().0, 200);
        assert_eq!(client.header("connection"), None);
    }
    assert_eq!(house.figures().connections, 1);
}
