//! How many connections there may be, running out of descriptors, stopping.
use std::fs::File;

use super::*;

#[test]
fn the_connection_idle_for_longest_makes_room() {
    let house = House::with(|settings| settings.connections = Some(3));
    let mut clients: Vec<_> = (0..3)
        .map(|_| {
            let mut client = house.client();
            client.send(NOW);
            assert_eq!(client.answer().0, 200);
            std::thread::sleep(Duration::from_millis(5));
            client
        })
        .collect();
    clients[0].send(NOW);
    assert_eq!(clients[0].answer().0, 200);
    house.expect_served();
    clients[1].expect_close();
    clients[0].send(NOW);
    assert_eq!(clients[0].answer().0, 200);
}

#[test]
fn a_newcomer_is_told_when_everybody_is_busy() {
    let house = House::with(|settings| settings.connections = Some(2));
    let mut busy: Vec<_> = (0..2)
        .map(|_| {
            let mut client = house.client();
            client.send(post("/hold", "busy"));
            house.expect_news("began");
            client
        })
        .collect();
    let mut client = house.client();
    client.expect_refusal(503);
    assert_eq!(house.figures().turned_away, 1);
    for client in &mut busy {
        house.release.send(()).unwrap();
        house.expect_news("released");
        let _ = client;
    }
    assert!(busy.iter_mut().all(|client| client.answer().0 == 200));
    house.expect_served();
}

#[test]
fn a_place_is_free_before_the_client_can_know_that_it_is_answered() {
    let house = House::with(|settings| (settings.workers, settings.queue) = (1, 0));
    for path in ["/slow-end", "/slow-end/stream", "/work", "/forget"] {
        let mut client = house.client();
        client.send(post(path, "x"));
        client.read_until(|bytes| (!bytes.is_empty()).then_some(1));
        house.expect_served();
        let mut next = house.client();
        next.send(post("/work", "abc"));
        assert_eq!(next.answer(), (200, "3".into()), "after {path}");
    }
}

#[test]
fn churn_leaves_nothing_behind() {
    let house = House::new();
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let address = house.address;
            std::thread::spawn(move || {
                for _ in 0..50 {
                    let mut client = Client::connect(address);
                    client.send(post("/work", "abc"));
                    assert_eq!(client.answer(), (200, "3".into()));
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    house.expect_nobody();
    assert_eq!((house.figures().panics, house.figures().turned_away), (0, 0));
}

#[test]
fn running_out_of_descriptors_is_survived() {
    if !is_alone("limits::running_out_of_descriptors_is_survived", "ulimit -n 60 &&") {
        return;
    }
    let house = House::new();
    house.expect_served();
    for free in 1..8 {
        let mut hoard: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        hoard.truncate(hoard.len() - free);
        let mut client = house.client();
        std::thread::sleep(Duration::from_millis(60));
        drop(hoard);
        // The accept loop has either left this client in the kernel's queue, and serves it now, or has dropped it.
        if client.try_send(NOW) {
            let mut bytes = [0; 12];
            let served = client.socket.read_exact(&mut bytes).is_ok();
            assert!(!served || &bytes == b"HTTP/1.1 200", "{free}");
        }
        drop(client);
        house.expect_served();
        house.expect_nobody();
    }
}

#[test]
fn a_stop_lets_answers_finish_and_idle_connections_go() {
    let house = House::new();
    let mut idle = house.client();
    idle.send(NOW);
    assert_eq!(idle.answer().0, 200);
    let mut busy = house.client();
    busy.send(post("/hold", "busy"));
    house.expect_news("began");
    let (address, release) = (house.address, house.release.clone());
    let stopping = std::thread::spawn(move || house.server.stop(PATIENCE));
    idle.expect_close();
    eventually("the port is closed", || TcpStream::connect(address).is_err());
    release.send(()).unwrap();
    assert_eq!(busy.answer(), (200, "busy".into()));
    assert_eq!(busy.header("connection"), Some("close"));
    busy.expect_close();
    // The stop does not depend on clients that close, too.
    assert!(stopping.join().unwrap());
    drop(busy);
}

#[test]
fn a_stop_cuts_what_does_not_finish() {
    let house = House::new();
    let mut busy = house.client();
    busy.send(post("/hold", "busy"));
    house.expect_news("began");
    let House { server, news, .. } = house;
    let monitor = server.monitor();
    assert!(!server.stop(Duration::from_millis(50)));
    assert_eq!(news.recv_timeout(PATIENCE), Ok("cut"));
    busy.expect_close();
    eventually("nobody is left", || monitor.figures().connections == 0);
}
