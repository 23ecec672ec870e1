//! What a service manager is told: that we are ready, alive, reading files again, stopping. sd_notify(3) is one datagram,
//! so no library is needed; without `NOTIFY_SOCKET` nothing is sent and nothing runs.
//!
//! The watchdog really probes: being alive means that the gateway answers on its own port and that live state can be
//! had, not merely that a thread is running.
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};

use crate::catalog::env::Variables;
use crate::relay::gateway::Gateway;

/// How long a healthy gateway may take to answer the probe. It needs no worker's place, so this is generous even
/// on a small machine under load.
const PROBE_WAIT: Duration = Duration::from_secs(5);
/// The longest that a backup is fetched.
const RESTORE_MAX: Duration = Duration::from_secs(1_000);
/// Shortest period of the watchdog that is followed; a shorter one would keep an idle machine awake.
const PROBE_EVERY_MIN: Duration = Duration::from_millis(100);

/// The way to the service manager, if there is one.
#[derive(Clone, Default)]
pub struct Manager {
    socket: Option<Arc<(UnixDatagram, UnixAddr)>>,
    /// Half of the time after which the manager takes silence for death.
    probe_every: Option<Duration>,
}

impl Manager {
    /// Finds the manager by the variables that systemd sets.
    pub fn of(process: &Variables) -> Manager {
        let Some(socket) = process.get("NOTIFY_SOCKET").and_then(|place| open(place)) else {
            return Manager::default();
        };
        // A watchdog that was meant for our parent is none of ours.
        let ours = process.get("WATCHDOG_PID").is_none_or(|pid| *pid == std::process::id().to_string());
        let period_us = process.get("WATCHDOG_USEC").and_then(|period| period.parse::<u64>().ok());
        let probe_every = period_us
            .filter(|period_us| ours && *period_us > 0)
            .map(|period_us| Duration::from_micros(period_us / 2).max(PROBE_EVERY_MIN));
        Manager { socket: Some(Arc::new(socket)), probe_every }
    }

    /// Serving, at `address`.
    pub fn ready(&self, address: SocketAddr) {
        self.tell(&format!("READY=1\nSTATUS=Serving on http://{address}"));
    }

    /// Fetching a backup before anything else, which may take longer than a start usually does.
    pub fn restoring(&self) {
        let most_us = RESTORE_MAX.as_micros();
        self.tell(&format!("EXTEND_TIMEOUT_USEC={most_us}\nSTATUS=Restoring the newest backup"));
    }

    /// Reading all files again.
    pub fn reloading(&self) {
        self.tell("RELOADING=1");
    }

    /// All files are read.
    pub fn reloaded(&self) {
        self.tell("READY=1");
    }

    /// Stopping, as told to.
    pub fn stopping(&self) {
        self.tell("STOPPING=1\nSTATUS=Waiting for answers in flight");
    }

    fn tell(&self, text: &str) {
        if let Some(socket) = &self.socket
            && let Err(error) = socket.0.send_to_addr(text.as_bytes(), &socket.1)
        {
            log::warn!("the service manager could not be told {:?}: {error}", text.lines().next());
        }
    }

    /// Begins to tell the manager that we are alive, as long as that is so, until the guard is dropped.
    pub fn watch(&self, gateway: &Arc<Gateway>, address: SocketAddr) -> Option<WatchGuard> {
        let every = self.probe_every?;
        let (manager, gateway) = (self.clone(), Arc::clone(gateway));
        let (guard, ended) = bounded(0);
        let watch = move || {
            loop {
                match check(&gateway, address) {
                    Ok(()) => manager.tell("WATCHDOG=1"),
                    Err(problem) => log::error!("the watchdog is not told that all is well: {problem}"),
                }
                if ended.recv_timeout(every) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
        };
        std::thread::Builder::new()
            .name("watchdog".into())
            .spawn(watch)
            .expect("the operating system starts a thread at start-up");
        Some(WatchGuard { _alive: guard })
    }
}

/// Ends the watchdog's thread when dropped.
pub struct WatchGuard {
    _alive: Sender<Never>,
}

/// What is never sent.
#[derive(Debug, PartialEq)]
enum Never {}

/// `None` for what is no place of a socket.
fn open(place: &str) -> Option<(UnixDatagram, UnixAddr)> {
    let address = match place.strip_prefix('@') {
        Some(name) => UnixAddr::from_abstract_name(name.as_bytes()).ok()?,
        None if place.starts_with('/') => UnixAddr::from_pathname(Path::new(place)).ok()?,
        None => return None,
    };
    Some((UnixDatagram::unbound().ok()?, address))
}

fn check(gateway: &Gateway, address: SocketAddr) -> Result<(), String> {
    if gateway.live.try_lock_for(PROBE_WAIT).is_none() {
        return Err(format!("live state was held for {} s", PROBE_WAIT.as_secs()));
    }
    // A gateway with all its places taken says so with a 503. It is busy, and would serve nobody better after a restart.
    judge(address, &[" 200", " 503"])
}

/// Asks the gateway at `address` for `/healthz`.
///
/// # Errors
/// What happened instead of a 200.
pub fn probe(address: SocketAddr) -> Result<(), String> {
    judge(address, &[" 200"])
}

fn judge(address: SocketAddr, fine: &[&str]) -> Result<(), String> {
    let address = SocketAddr::new(reachable(address.ip()), address.port());
    let ask = || -> io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&address, PROBE_WAIT)?;
        stream.set_read_timeout(Some(PROBE_WAIT))?;
        stream.set_write_timeout(Some(PROBE_WAIT))?;
        let host = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), address.port());
        let head = format!("GET /healthz HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes())?;
        let mut status = [0; STATUS_BYTES];
        stream.read_exact(&mut status)?;
        Ok(String::from_utf8_lossy(&status).into_owned())
    };
    match ask() {
        Ok(status) if fine.iter().any(|code| status.ends_with(code)) => Ok(()),
        Ok(status) => Err(format!("{address} answered {status:?}")),
        Err(error) => Err(format!("{address} does not answer: {error}")),
    }
}

/// Bytes of `HTTP/1.1 200`.
const STATUS_BYTES: usize = 12;

/// Where to reach a listener from the same machine: one on every address is also on loopback.
pub fn reachable(bound: IpAddr) -> IpAddr {
    match bound {
        IpAddr::V4(address) if address.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(address) if address.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> Variables {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_manager_is_found_by_its_variables() {
        let pid = std::process::id().to_string();
        let check = |pairs: &[(&str, &str)], told: bool, every_ms: Option<u64>| {
            let manager = Manager::of(&variables(pairs));
            assert_eq!(manager.socket.is_some(), told, "{pairs:?}");
            assert_eq!(manager.probe_every, every_ms.map(Duration::from_millis), "{pairs:?}");
        };
        let socket = ("NOTIFY_SOCKET", "@freeway-test");
        check(&[], false, None);
        check(&[("WATCHDOG_USEC", "1000000")], false, None);
        check(&[("NOTIFY_SOCKET", "")], false, None);
        check(&[socket], true, None);
        check(&[socket, ("WATCHDOG_USEC", "1000000")], true, Some(500));
        check(&[socket, ("WATCHDOG_USEC", "1000000"), ("WATCHDOG_PID", &pid)], true, Some(500));
        check(&[socket, ("WATCHDOG_USEC", "1000000"), ("WATCHDOG_PID", "1")], true, None);
        check(&[socket, ("WATCHDOG_USEC", "10")], true, Some(100));
        check(&[socket, ("WATCHDOG_USEC", "often")], true, None);
    }

    #[test]
    fn a_probe_tells_what_it_met() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let serve = move |answers: &'static [&'static str]| {
            for answer in answers {
                let (mut stream, _) = listener.accept().expect("a caller");
                let _ = stream.read(&mut [0; 256]).expect("a question");
                stream.write_all(answer.as_bytes()).expect("an answer");
            }
        };
        let server =
            std::thread::spawn(move || serve(&["HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 503 No\r\n\r\n", "no"]));
        let everywhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port());
        assert_eq!(probe(everywhere), Ok(()));
        assert!(probe(address).is_err_and(|problem| problem.contains("503")));
        assert!(probe(address).is_err_and(|problem| problem.contains("does not answer")));
        server.join().expect("the server ends");
        assert!(probe(address).is_err_and(|problem| problem.contains("does not answer")));
    }
}
