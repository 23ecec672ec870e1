//! One client's connection as we hold it: a duplicate of the socket that tiny_http owns, and whether a request is
//! being served on it.
//!
//! All of our reading and writing goes through here, so that no wait is without a limit: the kernel's timeouts bound
//! each call, a deadline bounds each frame.
use std::io::{self, IoSlice, Read};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use socket2::{SockRef, TcpKeepalive};

use super::registry::Seat;
use super::sock;
use crate::base::clock;
use crate::upstream::cut::Cut;

/// `Line::state` while a request is served; other values are the moment at which the line became idle.
const BUSY: u64 = 0;
/// `Line::state` once the line has been told to close.
const CLOSING: u64 = u64::MAX;

/// Most bytes, and longest time, that are read and dropped so that a client can read an answer which came before its
/// request was whole. Closing at once would send a reset, which makes clients discard what they have not read yet.
/// This many after what is no request at all.
pub const LINGER_BYTES_MAX: usize = 1 << 20;
/// This many after a request whose body is refused: many clients send all of it before they look for an answer, and
/// one that was a little too large should be told so rather than meet a broken pipe.
pub const LINGER_BODY_BYTES_MAX: usize = 16 << 20;
const LINGER_MAX: Duration = Duration::from_secs(1);

/// A silent peer is probed after this, and given up after three unanswered probes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);

/// A peer that acknowledges nothing for this long is gone, though there is room to write to it.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(90);

/// A connection.
#[derive(Debug)]
pub struct Line {
    socket: TcpStream,
    /// `BUSY`, `CLOSING`, or since when idle (milliseconds of uptime, plus one).
    state: AtomicU64,
    call: Mutex<CallOfLine>,
    write_timeout: Duration,
    /// What the kernel's receive timeout stands at, to save the calls that would change nothing.
    read_timeout_ms: AtomicU64,
    /// Last, because fields are dropped in order: the seat is free only when the socket is closed.
    seat: Seat,
}

/// What ends with the client.
#[derive(Debug, Default)]
struct CallOfLine {
    /// Ends the upstream call that is made for it.
    cut: Option<Arc<Cut>>,
    /// It has stopped sending, or is gone.
    hung_up: bool,
}

impl Line {
    /// Takes over the duplicate of a fresh connection.
    pub fn new(socket: TcpStream, seat: Seat, write_timeout: Duration) -> io::Result<Arc<Line>> {
        socket.set_nodelay(true)?;
        socket.set_write_timeout(Some(write_timeout))?;
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL);
        let handle = SockRef::from(&socket);
        handle.set_tcp_keepalive(&keepalive.with_retries(3))?;
        handle.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))?;
        let line = Arc::new(Line {
            socket,
            state: AtomicU64::new(idle_now()),
            call: Mutex::default(),
            write_timeout,
            read_timeout_ms: AtomicU64::new(0),
            seat,
        });
        Seat::occupy(&line, &line.seat);
        Ok(line)
    }

    /// The client's address, an IPv4 one also when it came in over IPv6.
    pub fn peer(&self) -> SocketAddr {
        let peer = self.seat.ends().peer;
        SocketAddr::new(peer.ip().to_canonical(), peer.port())
    }

    /// The server stops, so this line ends with its current request.
    pub fn is_stopping(&self) -> bool {
        self.seat.registry().is_stopping()
    }

    /// Since when the line is without a request, in milliseconds of uptime; `None` while one is served.
    pub fn idle_since_ms(&self) -> Option<u64> {
        Some(self.state.load(Ordering::SeqCst)).filter(|state| *state != BUSY && *state != CLOSING)
    }

    /// A request has begun; false when the line was told to close just before.
    pub fn begin(&self) -> bool {
        let seen = self.state.load(Ordering::SeqCst);
        seen == BUSY
            || (seen != CLOSING
                && self.state.compare_exchange(seen, BUSY, Ordering::SeqCst, Ordering::SeqCst).is_ok())
    }

    /// The request is over.
    pub fn rest(&self) {
        self.let_go_of_cut();
        self.state.store(idle_now(), Ordering::SeqCst);
        // The stop looks for idle lines after it set its flag; we look at the flag after becoming idle. One of us sees
        // the other.
        if self.is_stopping() {
            self.close_if_idle();
        }
    }

    /// Closes the line unless a request is being served.
    pub fn close_if_idle(&self) -> bool {
        let Some(since) = self.idle_since_ms() else {
            return false;
        };
        let won = self.state.compare_exchange(since, CLOSING, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if won {
            self.close();
        }
        won
    }

    /// Names the upstream call that ends with this client, which may have hung up already.
    pub fn hold_cut(&self, cut: &Arc<Cut>) {
        let mut call = self.call.lock();
        call.cut = Some(Arc::clone(cut));
        let hung_up = call.hung_up;
        drop(call);
        if hung_up {
            cut.cut();
        }
    }

    /// The call has done its part, and no longer ends with this client.
    pub fn let_go_of_cut(&self) {
        self.call.lock().cut = None;
    }

    /// The client has hung up: ends the upstream call that is made for it, or the next to begin.
    pub fn hang_up(&self) {
        let mut call = self.call.lock();
        call.hung_up = true;
        let cut = call.cut.take();
        drop(call);
        if let Some(cut) = cut {
            cut.cut();
        }
    }

    /// Ends the upstream call and the connection.
    pub fn cut(&self) {
        self.hang_up();
        self.close();
    }

    /// Ends the connection in both directions, which wakes whoever waits on it. The descriptor stays.
    pub fn close(&self) {
        // An error means that it has ended already.
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Tells the client that nothing more will come.
    pub fn finish_writing(&self) {
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    /// Sets the longest that one read or peek may wait.
    pub fn set_read_timeout(&self, timeout: Duration) {
        let timeout_ms = (timeout.as_millis() as u64).max(1);
        if self.read_timeout_ms.swap(timeout_ms, Ordering::Relaxed) != timeout_ms {
            // Fails only for a closed socket, on which no read waits.
            let _ = self.socket.set_read_timeout(Some(Duration::from_millis(timeout_ms)));
        }
    }

    /// Sets the timeout to what is left until `deadline`, but leaves it alone while it is about right, because that
    /// costs a system call. False when the deadline has passed.
    pub fn read_until(&self, deadline: Instant) -> bool {
        let left_ms = deadline.saturating_duration_since(Instant::now()).as_millis() as u64;
        let set_ms = self.read_timeout_ms.load(Ordering::Relaxed);
        if left_ms > 0 && (set_ms > left_ms + left_ms / 16 + 10 || set_ms < left_ms / 2) {
            self.set_read_timeout(Duration::from_millis(left_ms));
        }
        left_ms > 0
    }

    /// Looks at unread bytes, waiting for the first of them.
    pub fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        uninterrupted(|| self.socket.peek(buffer))
    }

    /// Waits until `count` bytes are unread, or the client stops sending; false when neither happened by `deadline`.
    pub fn wait_for(&self, count: usize, deadline: Instant) -> io::Result<bool> {
        loop {
            let left_ms = deadline.saturating_duration_since(Instant::now()).as_millis() as u64;
            if left_ms == 0 {
                return Ok(false);
            }
            match sock::wait_for_bytes(&self.socket, count, left_ms) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    /// Whether something of the client is waiting to be read.
    pub fn has_input(&self) -> bool {
        sock::has_input(&self.socket)
    }

    /// Whether the client has stopped sending, or is gone.
    pub fn has_hung_up(&self) -> bool {
        sock::has_hung_up(&self.socket)
    }

    /// Payload bytes that the kernel has ever received here.
    pub fn received_bytes(&self) -> Option<u64> {
        sock::received_bytes(&self.socket)
    }

    /// Takes exactly `count` bytes, which have been seen, off the socket.
    pub fn skip(&self, mut count: usize) -> io::Result<()> {
        let mut scratch = [0; 4096];
        while count > 0 {
            let part = scratch.len().min(count);
            match (&mut &*self).read(&mut scratch[..part])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                taken => count -= taken,
            }
        }
        Ok(())
    }

    /// Writes all of `parts` in one call if the kernel takes them, within one deadline for the whole.
    ///
    /// # Errors
    /// `TimedOut` when the client does not read; the kind that the system gives when it has gone.
    pub fn write(&self, mut parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        let socket = SockRef::from(&self.socket);
        let deadline = Instant::now() + self.write_timeout;
        let (mut partial, mut shortened) = (false, false);
        while parts.iter().any(|part| !part.is_empty()) {
            if partial {
                // The kernel counts its timeout anew for each call: give it what is left of ours.
                let left = deadline.saturating_duration_since(Instant::now());
                if left.as_millis() == 0 {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                self.socket.set_write_timeout(Some(left))?;
                shortened = true;
            }
            // Without the flag a client that has left would end this process by a signal.
            match socket.send_vectored_with_flags(parts, libc::MSG_NOSIGNAL) {
                Ok(count) => IoSlice::advance_slices(&mut parts, count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Err(error) => return Err(error),
            }
            partial = true;
        }
        if shortened {
            self.socket.set_write_timeout(Some(self.write_timeout))?;
        }
        Ok(())
    }

    /// Writes as much of `parts` as there is room for, without waiting; gives the number of bytes.
    ///
    /// # Errors
    /// The kind that the system gives when the client has gone.
    pub fn write_now(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        match SockRef::from(&self.socket).send_vectored_with_flags(parts, flags) {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(0)
            }
            result => result,
        }
    }

    /// Lets the client read what was written before this line ends, though it may still be sending.
    pub fn linger(&self, bytes_max: usize) {
        self.finish_writing();
        let deadline = Instant::now() + LINGER_MAX;
        let (mut scratch, mut dropped) = ([0; 4096], 0);
        while dropped < bytes_max && self.read_until(deadline) {
            match (&mut &*self).read(&mut scratch) {
                Ok(0) | Err(_) => break,
                Ok(count) => dropped += count,
            }
        }
        self.close();
    }
}

impl AsRawFd for Line {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl Read for &Line {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        uninterrupted(|| (&self.socket).read(buffer))
    }
}

/// Repeats a call that a signal has interrupted.
fn uninterrupted(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// The state of a line that becomes idle now.
fn idle_now() -> u64 {
    clock::uptime_ms() + 1
}
