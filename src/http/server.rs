//! The accept loop, and the house that all connections live in: start, figures, stop.
//!
//! tiny_http accepts and owns the sockets. Around its call stands what it lacks: caps, a back-off when descriptors run
//! out, a guard against its panics, and our own duplicate of each socket.
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use socket2::SockRef;
use tiny_http::{Listener, Server as Tiny, SslContextWrap};

use super::answer::{Answer, Framing, answer_bytes};
use super::budget::Budget;
use super::conn::{self, Door, Requests};
use super::hangup::Hangups;
use super::head::Refusal;
use super::line::Line;
use super::pool::{Pool, Sizes};
use super::registry::{Full, Registry};
use super::sock;
use super::workers::{Load, Workers};
use crate::catalog::settings::ServerSettings;

/// Most connections when the setting leaves it to us. Each costs about 20 KiB.
const CONNECTIONS_MAX: u64 = 1024;
/// Fewest that the server is worth starting with.
const CONNECTIONS_MIN: u64 = 16;
/// tiny_http holds two descriptors of a connection, we hold one, its upstream call needs one.
const DESCRIPTORS_PER_CONNECTION: u64 = 4;
/// Descriptors for everything else: the database, logs, background calls.
const DESCRIPTORS_KEPT: u64 = 64;

/// The thread of a connection parses JSON up to 128 levels deep, does TLS handshakes and translates whole answers. Only
/// what is touched becomes memory.
const STACK_BYTES: usize = 512 * 1024;
/// Threads of ended connections wait this long for the next one.
const THREAD_IDLE: Duration = Duration::from_secs(5);

/// First and longest pause after a failed accept. A connection that was closed to make room is gone within the first.
const BACKOFF_FIRST: Duration = Duration::from_millis(2);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// Most bytes read from a newcomer that is turned away, so that it can read why.
const FAREWELL_BYTES_MAX: usize = 64 * 1024;
/// How long a stop waits for connections that it has cut.
const CUT_WAIT: Duration = Duration::from_secs(2);

/// What connections share.
pub struct House {
    pub settings: ServerSettings,
    pub door: Door,
    pub workers: Arc<Workers>,
    pub budget: Arc<Budget>,
    pub registry: Arc<Registry>,
    pub gauges: Gauges,
}

/// Counts since the start.
#[derive(Debug, Default)]
pub struct Gauges {
    turned_away: AtomicU64,
    refused: AtomicU64,
    panics: AtomicU64,
}

impl Gauges {
    /// A request whose head was refused.
    pub fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// A panic of the door, or of what answers a request.
    pub fn count_panic(&self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
    }
}

/// What the server is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    pub connections: usize,
    pub workers: Load,
    /// Memory held by request bodies.
    pub body_bytes: usize,
    /// Connections refused since the start because there were too many.
    pub turned_away: u64,
    /// Requests refused since the start for the form of their head.
    pub refused: u64,
    /// Failures of our own code since the start.
    pub panics: u64,
}

/// Reads figures; cheap to clone, and good also after the server has stopped.
#[derive(Clone)]
pub struct Monitor(Arc<House>);

impl Monitor {
    /// What the server is doing now.
    pub fn figures(&self) -> Figures {
        let (gauges, workers) = (&self.0.gauges, self.0.workers.load());
        Figures {
            connections: self.0.registry.len(),
            workers,
            body_bytes: self.0.budget.used_bytes(),
            turned_away: gauges.turned_away.load(Ordering::Relaxed),
            refused: gauges.refused.load(Ordering::Relaxed),
            panics: gauges.panics.load(Ordering::Relaxed),
        }
    }
}

/// A running server on one listening socket.
pub struct Server {
    house: Arc<House>,
    listener: TcpListener,
    /// `None` once it has been waited for.
    accepting: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts to serve on `listener`.
    ///
    /// # Errors
    /// When the system grants no thread or no second handle of the listener.
    pub fn start(listener: TcpListener, settings: &ServerSettings, door: Door) -> io::Result<Server> {
        let connections = connections_max(settings.connections);
        let house = Arc::new(House {
            registry: Registry::new(connections, settings.per_address),
            budget: Budget::new(settings.bodies_in_flight_bytes),
            workers: Workers::new(settings.workers, settings.queue),
            settings: settings.clone(),
            door,
            gauges: Gauges::default(),
        });
        let hangups = Hangups::start(&listener, &house.registry)?;
        let acceptor = Acceptor {
            port: listener.local_addr()?.port(),
            watched: listener.try_clone()?,
            listener: Listener::Tcp(listener.try_clone()?),
            plain: SslContextWrap::build_ssl_capabilities(None)
                .map_err(|error| io::Error::other(error.to_string()))?,
            threads: threads(&house, connections),
            hangups,
            house: Arc::clone(&house),
        };
        let accepting = std::thread::Builder::new().name("accept".into()).spawn(move || acceptor.run())?;
        Ok(Server { house, listener, accepting: Some(accepting) })
    }

    /// The address in use, with the port that the system chose if none was asked for.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// A handle for views and metrics.
    pub fn monitor(&self) -> Monitor {
        Monitor(Arc::clone(&self.house))
    }

    /// Stops: no new connections, no further request on old ones, answers in flight get `patience`, then they are cut.
    /// True when all were finished in time.
    pub fn stop(mut self, patience: Duration) -> bool {
        let registry = Arc::clone(&self.house.registry);
        self.close();
        if let Some(accepting) = self.accepting.take() {
            // It fails only if the loop panicked, which has been reported.
            let _ = accepting.join();
        }
        // Now for connections that were accepted while the stop began.
        registry.stop();
        let finished = registry.wait_until_empty(Instant::now() + patience);
        if !finished {
            registry.cut_all();
            registry.wait_until_empty(Instant::now() + CUT_WAIT);
        }
        finished
    }

    /// Closes the listening socket, which wakes the accept loop, and all connections without a request.
    fn close(&self) {
        self.house.registry.stop();
        // It cannot fail for a socket that listens; a second time does no harm.
        let _ = SockRef::from(&self.listener).shutdown(Shutdown::Both);
    }
}

impl Drop for Server {
    /// Stops without waiting for anything.
    fn drop(&mut self) {
        self.close();
    }
}

/// How many connections there may be.
fn connections_max(setting: Option<usize>) -> usize {
    let wanted = CONNECTIONS_MAX.max(setting.unwrap_or(0) as u64);
    let descriptors = sock::raise_descriptor_limit(
        wanted.saturating_mul(DESCRIPTORS_PER_CONNECTION).saturating_add(DESCRIPTORS_KEPT),
    );
    let possible =
        (descriptors.saturating_sub(DESCRIPTORS_KEPT) / DESCRIPTORS_PER_CONNECTION).max(CONNECTIONS_MIN);
    match setting {
        Some(count) => count.clamp(1, possible as usize),
        None => possible.min(CONNECTIONS_MAX) as usize,
    }
}

/// A connection on its way to its thread.
struct Arrival {
    line: Arc<Line>,
    requests: Requests,
}

fn threads(house: &Arc<House>, connections: usize) -> Pool<Arrival> {
    let sizes = Sizes {
        name: "client",
        // The registry bounds them; those that are just ending come on top.
        threads_max: connections.saturating_mul(2),
        stack_bytes: STACK_BYTES,
        idle: THREAD_IDLE,
    };
    let house = Arc::clone(house);
    Pool::new(sizes, move |arrival: Arrival| conn::serve(&house, arrival.line, arrival.requests))
}

struct Acceptor {
    port: u16,
    watched: TcpListener,
    listener: Listener,
    plain: SslContextWrap,
    threads: Pool<Arrival>,
    hangups: Arc<Hangups>,
    house: Arc<House>,
}

impl Acceptor {
    fn run(self) {
        let mut backoff = BACKOFF_FIRST;
        while !self.house.registry.is_stopping() {
            match self.accept() {
                Ok(()) => backoff = BACKOFF_FIRST,
                Err(error) => {
                    if is_exhaustion(&error) {
                        self.house.registry.close_longest_idle();
                    }
                    // Whoever wants to connect waits in the kernel's queue.
                    std::thread::sleep(backoff);
                    backoff = (backoff * 2).min(BACKOFF_MAX);
                }
            }
        }
    }

    /// Accepts one connection and gives it to a thread.
    fn accept(&self) -> io::Result<()> {
        sock::wait_for_client(&self.watched)?;
        if self.house.registry.is_stopping() {
            return Ok(());
        }
        // A newcomer who could not be served is not let in: others make room for it, or it waits in the kernel's queue.
        let likely: [_; DESCRIPTORS_PER_CONNECTION as usize] = sock::next_descriptors(&self.watched)?;
        // It panics when it finds no descriptor for its second handle of the socket.
        let accepted =
            catch_unwind(AssertUnwindSafe(|| Tiny::accept_connection(&self.listener, &self.plain)));
        let Some(requests) = accepted.map_err(|_| io::Error::from_raw_os_error(libc::EMFILE))?? else {
            return Ok(());
        };
        let requests: Requests = Box::new(requests.map_while(Result::ok));
        let known = |ends: &sock::Ends| !self.house.registry.knows(ends);
        let Some((socket, ends)) = sock::duplicate_accepted(self.port, &likely, known) else {
            // The client has left already, or no descriptor was left for us.
            return Ok(());
        };
        match self.house.registry.seat(ends) {
            Err(full) => self.turn_away(socket, full),
            Ok(seat) => {
                let write_timeout = Duration::from_millis(self.house.settings.write_ms.max(1));
                if let Ok(line) = Line::new(socket, seat, write_timeout) {
                    self.hangups.watch(&line)?;
                    self.threads
                        .submit(Arrival { line, requests })
                        .map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))?;
                }
            }
        }
        Ok(())
    }

    /// Tells a newcomer that there is no room, without waiting for anything.
    fn turn_away(&self, mut socket: TcpStream, full: Full) {
        self.house.gauges.turned_away.fetch_add(1, Ordering::Relaxed);
        let message = match full {
            Full::Everybody => "this server has as many connections as it can hold",
            Full::Address => "this address has as many connections as one address may have",
        };
        let answer = Answer::from(Refusal::overloaded(message));
        if socket.set_nonblocking(true).is_err()
            || socket.write_all(&answer_bytes(Framing::LAST, &answer)).is_err()
        {
            return;
        }
        let _ = socket.shutdown(Shutdown::Write);
        // A request that lies unread at the close would make the system send a reset, and the answer would be lost.
        let (mut scratch, mut dropped) = ([0; 4096], 0);
        while let Ok(count @ 1..) = socket.read(&mut scratch) {
            dropped += count;
            if dropped > FAREWELL_BYTES_MAX {
                break;
            }
        }
    }
}

/// Whether an error means that the system has nothing left to give.
fn is_exhaustion(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cap_on_connections_follows_the_setting_within_what_the_system_grants() {
        assert_eq!(connections_max(Some(3)), 3);
        assert_eq!(connections_max(Some(0)), 1);
        let derived = connections_max(None);
        assert!((CONNECTIONS_MIN as usize..=CONNECTIONS_MAX as usize).contains(&derived), "{derived}");
        assert!(connections_max(Some(usize::MAX >> 8)) >= derived);
    }
}
