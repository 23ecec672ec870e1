//! Bodies that are lent to a thread that makes no call: what it sees, and that the call meets the rest as if it had read
//! all by itself.
use super::ways::{client_with, tls_server, trusting};
use super::*;
use crate::upstream::client::{Glance, Inflow};
use crate::wire::exchange::FaultKind;

const HEAD: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

fn chunk(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

/// Reads all that comes until `bytes` are there, or something that the call has to judge.
fn read_lent(inflow: &mut Inflow, bytes: usize) -> (String, Glance) {
    let (mut text, mut piece) = (Vec::new(), [0; 1000]);
    let ends = Instant::now() + PATIENCE;
    let mut may_look = true;
    while Instant::now() < ends {
        match inflow.read(&mut piece, may_look) {
            Glance::Bytes(count) => {
                text.extend_from_slice(&piece[..count]);
                may_look = false;
            }
            Glance::Nothing if text.len() < bytes => {
                thread::sleep(Duration::from_millis(1));
                may_look = true;
            }
            end => return (String::from_utf8(text).unwrap(), end),
        }
    }
    panic!("only {} bytes of {bytes} came", text.len());
}

/// The call reads `begin` itself and lends the rest. Gives what the borrower saw, and what the call read after it.
fn lent(server: &Server, url: &str, begin: usize, bytes: usize) -> (String, Glance, Result<String, Fault>) {
    let (client, provider) = (client_with(&["127.0.0.1"], trusting()), provider(url));
    let asked = Asked::new(&client, &provider);
    let mut body = asked.send().unwrap().body;
    let mut piece = vec![0; begin];
    let mut known = 0;
    while known < begin {
        known += body.read(&mut piece[known..]).unwrap();
    }
    let mut inflow = body.lend().expect("a plain body");
    let (text, end) =
        thread::scope(|scope| scope.spawn(|| read_lent(&mut inflow, bytes)).join().expect("it reads"));
    body.take_back(inflow);
    let rest = body.read_all(1 << 24).map(|rest| String::from_utf8(rest).unwrap());
    assert_eq!(server.connections(), 1);
    (text, end, rest)
}

#[test]
fn a_borrower_sees_what_has_come_and_never_waits() {
    let server = Server::start(|_, mut stream| {
        read_request(&mut stream);
        stream.write_all(HEAD.as_bytes()).unwrap();
        // The borrower meets chunks cut anywhere: within their sizes, their ends and their text.
        for byte in [chunk("ab"), chunk("cdefghij"), chunk("klm")].concat().bytes() {
            stream.write_all(&[byte]).unwrap();
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(100));
        stream.write_all(format!("{}0\r\n\r\n", chunk("nop")).as_bytes()).unwrap();
        wait_for_leave(&mut stream);
    });
    let (text, end, rest) = lent(&server, &server.url(), 1, 12);
    assert_eq!((text.as_str(), end), ("bcdefghijklm", Glance::Nothing));
    assert_eq!(rest.unwrap(), "nop");
}

#[test]
fn a_burst_is_seen_whole_also_through_tls() {
    let text = "0123456789".repeat(30_000);
    let server = tls_server("server.pem", {
        let text = text.clone();
        move |mut stream| {
            read_request(&mut stream);
            stream.write_all(format!("{HEAD}{}", chunk(&text)).as_bytes()).unwrap();
            stream.flush().unwrap();
            thread::sleep(Duration::from_millis(300));
            stream.write_all(format!("{}0\r\n\r\n", chunk("end")).as_bytes()).unwrap();
            stream.flush().unwrap();
            let _ = stream.read(&mut [0]);
        }
    });
    let url = format!("https://up.test:{}/v1", server.address.port());
    let (seen, end, rest) = lent(&server, &url, 5, text.len() - 5);
    assert!(seen == text[5..], "{} bytes", seen.len());
    assert_eq!((end, rest.unwrap().as_str()), (Glance::Nothing, "end"));
}

#[test]
fn what_a_borrower_cannot_judge_is_judged_by_the_call() {
    let cases: [(&str, Option<FaultKind>); 4] = [
        // The end of a whole body.
        ("0\r\n\r\n", None),
        // The end in the midst of a chunk, and of a body.
        ("5\r\nab", Some(FaultKind::Closed)),
        ("", Some(FaultKind::Closed)),
        ("zz\r\nab\r\n", Some(FaultKind::Protocol)),
    ];
    for (last, kind) in cases {
        let server = Server::start(move |_, mut stream| {
            read_request(&mut stream);
            stream.write_all(format!("{HEAD}{}", chunk("begin")).as_bytes()).unwrap();
            thread::sleep(Duration::from_millis(50));
            stream.write_all(last.as_bytes()).unwrap();
        });
        let (_, end, rest) = lent(&server, &server.url(), 5, 1_000);
        assert_eq!(end, Glance::Unclear, "{last:?}");
        assert_eq!(rest.err().map(|fault| fault.kind), kind, "{last:?}");
    }
}

#[test]
fn a_reset_is_no_end_of_a_body_that_ends_with_its_connection() {
    let server = Server::start(|_, mut stream| {
        read_request(&mut stream);
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nbegin").unwrap();
        thread::sleep(Duration::from_millis(50));
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    });
    let (_, end, rest) = lent(&server, &server.url(), 5, 1_000);
    assert_eq!(end, Glance::Unclear);
    assert_eq!(rest.unwrap_err().kind, FaultKind::Closed);
}

#[test]
fn a_call_that_was_cut_lends_nothing_and_a_lent_one_can_be_cut() {
    let server = Server::start(|_, mut stream| {
        read_request(&mut stream);
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nbegin").unwrap();
        wait_for_leave(&mut stream);
    });
    let (client, provider) = (client(), provider(&server.url()));
    let asked = Asked::new(&client, &provider);
    let mut body = asked.send().unwrap().body;
    let mut inflow = body.lend().expect("it was not cut");
    let (seen, _) = read_lent(&mut inflow, 5);
    assert_eq!(seen, "begin");
    asked.cut.cut();
    assert_eq!(read_lent(&mut inflow, 1), (String::new(), Glance::Unclear));
    body.take_back(inflow);
    assert!(body.lend().is_none());
    assert_eq!(fault_of(body.read(&mut [0])).kind, FaultKind::Cut);
}

#[test]
fn framing_without_end_goes_back_to_the_call_which_gives_up_on_it() {
    let server = Server::start(|_, mut stream| {
        read_request(&mut stream);
        stream.write_all(format!("{HEAD}{}0\r\n", chunk("begin")).as_bytes()).unwrap();
        while stream.write_all(b"x-trailer: and another one\r\n").is_ok() {}
    });
    let (text, end, rest) = lent(&server, &server.url(), 5, 1_000);
    assert_eq!((text.as_str(), end), ("", Glance::Unclear));
    let fault = rest.unwrap_err();
    assert!(matches!(fault.kind, FaultKind::TooLarge | FaultKind::Protocol), "{fault:?}");
}
