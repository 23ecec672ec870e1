//! One connection to an upstream: a TCP socket, perhaps with TLS on it. Blocks no longer than the call allows, and
//! turns what goes wrong into faults.
use std::borrow::Cow;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use socket2::SockRef;

use super::watch::Current;
use super::{tls, way_out};
use crate::wire::exchange::{Fault, FaultKind, Phase};

/// Whom a connection leads to. Connections are shared only between calls to equal peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    pub tls: bool,
    /// Without the brackets of an IPv6 address.
    pub host: Box<str>,
    pub port: u16,
    /// The variable that names the proxy in between.
    pub proxy: Option<Box<str>>,
}

impl Peer {
    /// With the brackets that a URL wants around an IPv6 address.
    pub fn host_in_url(&self) -> Cow<'_, str> {
        if self.host.contains(':') { format!("[{}]", self.host).into() } else { Cow::Borrowed(&*self.host) }
    }
}

#[derive(Debug)]
pub(super) struct Wire {
    pub peer: Peer,
    socket: Arc<TcpStream>,
    /// Of the other end; a dead socket does not tell it any more.
    address: Option<SocketAddr>,
    waits: Waits,
    tls: Option<Box<ClientConnection>>,
    /// What went wrong while nobody could judge it.
    late: Option<io::Error>,
}

/// The timeouts that the socket has now. Setting one is a system call, so one that serves is left as it is.
#[derive(Debug, Default)]
struct Waits {
    receive: Option<Duration>,
    send: Option<Duration>,
}

/// A timeout of this length or more is left in place although the call could wait longer: the thread then wakes once
/// in a while for nothing, which costs less than to set it for each call.
const WAKE_FOR_NOTHING: Duration = Duration::from_secs(1);
/// The shortest timeout that a socket takes; zero would mean none.
const WAIT_MIN: Duration = Duration::from_millis(1);

/// Sets a socket timeout through `set` unless the one in place serves: it may be late by 3 %, or early.
fn adjust(
    now: &mut Option<Duration>,
    wanted: Duration,
    set: impl FnOnce(Option<Duration>) -> io::Result<()>,
) -> io::Result<()> {
    let latest = wanted + wanted / 32 + WAIT_MIN;
    let serves = |wait: Duration| wait <= latest && (wait >= WAKE_FOR_NOTHING || wait >= wanted / 2);
    if !now.is_some_and(serves) {
        let wait = wanted.max(WAIT_MIN);
        set(Some(wait))?;
        *now = Some(wait);
    }
    Ok(())
}

impl Wire {
    /// A connection over a socket that is connected.
    pub fn new(peer: Peer, socket: Arc<TcpStream>) -> Wire {
        let address = socket.peer_addr().ok();
        Wire { peer, socket, address, waits: Waits::default(), tls: None, late: None }
    }

    pub fn socket(&self) -> &Arc<TcpStream> {
        &self.socket
    }

    /// Starts TLS; the certificate must name the peer.
    pub fn start_tls(&mut self, config: &Arc<ClientConfig>, call: &Current) -> Result<(), Fault> {
        let name = ServerName::try_from(String::from(&*self.peer.host)).map_err(|_| {
            call.fault(FaultKind::Tls, "its host name is none that a certificate could carry")
        })?;
        let mut session =
            ClientConnection::new(Arc::clone(config), name).map_err(|error| tls::fault(&error, call))?;
        let mut patient = Patient::new(&self.socket, self.address, &mut self.waits, call);
        let shaken = session.complete_io(&mut patient);
        patient.judge(shaken)?;
        self.tls = Some(Box::new(session));
        Ok(())
    }

    /// Reads what there is, blocking until there is something; 0 is the end of the connection.
    pub fn receive(&mut self, into: &mut [u8], call: &Current) -> Result<usize, Fault> {
        let mut patient = Patient::new(&self.socket, self.address, &mut self.waits, call);
        if let Some(error) = self.late.take() {
            return patient.judge(Err(error));
        }
        let Some(session) = &mut self.tls else {
            let read = patient.read(into);
            return patient.judge(read);
        };
        loop {
            match session.reader().read(into) {
                Ok(read) => return Ok(read),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // The peer left without the farewell of TLS. Whether the answer is whole shows from its framing.
                Err(_) => return Ok(0),
            }
            let read = session.read_tls(&mut patient);
            patient.judge(read)?;
            session.process_new_packets().map_err(|error| tls::fault(&error, call))?;
            if session.wants_write() {
                let written = session.write_tls(&mut patient);
                patient.judge(written)?;
            }
        }
    }

    /// Reads what has come, from the socket only if it `may_look`; the socket is one that does not block. 0 is the end of
    /// the connection.
    ///
    /// # Errors
    /// `WouldBlock` when nothing has come; what else went wrong is kept for [`Wire::receive`] to judge.
    pub fn receive_now(&mut self, into: &mut [u8], may_look: bool) -> io::Result<usize> {
        let read = self.try_receive(into, may_look);
        match read {
            Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                self.late = Some(error);
                Err(ErrorKind::Other.into())
            }
            read => read,
        }
    }

    fn try_receive(&mut self, into: &mut [u8], mut may_look: bool) -> io::Result<usize> {
        let mut socket = &*self.socket;
        let Some(session) = &mut self.tls else {
            return if may_look { socket.read(into) } else { Err(ErrorKind::WouldBlock.into()) };
        };
        loop {
            match session.reader().read(into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock && may_look => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(error),
                // The peer may have left without the farewell of TLS, which is no error of its own.
                read => return read.or(Ok(0)),
            }
            may_look = false;
            session.read_tls(&mut socket)?;
            session.process_new_packets().map_err(io::Error::other)?;
            if session.wants_write() {
                // If there is no room now, the next to write takes it along.
                let _ = session.write_tls(&mut socket);
            }
        }
    }

    /// Writes all of `bytes`.
    pub fn send(&mut self, bytes: &[u8], call: &Current) -> Result<(), Fault> {
        let mut patient = Patient::new(&self.socket, self.address, &mut self.waits, call);
        let Some(session) = &mut self.tls else {
            let written = patient.write_all(bytes);
            return patient.judge(written);
        };
        let mut rest = bytes;
        while !rest.is_empty() {
            // Takes less than all only when its own buffer is full, which the loop below then empties.
            let taken = session.writer().write(rest);
            rest = &rest[patient.judge(taken)?..];
            while session.wants_write() {
                let written = session.write_tls(&mut patient);
                patient.judge(written)?;
            }
        }
        Ok(())
    }

    /// Whether this machine still has a way to the peer.
    pub fn has_way(&self) -> bool {
        self.address.is_none_or(way_out::leads_to)
    }

    /// Whether an idle connection can carry another call. One that the peer ended cannot; nor one where bytes wait
    /// that nobody asked for, because they would pass for the next answer.
    pub fn is_idle(&self) -> bool {
        let mut byte = [MaybeUninit::uninit()];
        match SockRef::from(&*self.socket).recv_with_flags(&mut byte, libc::MSG_PEEK | libc::MSG_DONTWAIT) {
            Ok(_) => false,
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        }
    }

    /// Whether decrypted bytes are left over after an answer.
    pub fn has_leftovers(&mut self) -> bool {
        self.tls.as_mut().is_some_and(|session| {
            !matches!(session.reader().read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
        })
    }
}

/// A socket that waits as long as its call allows: to the next pulse, to the deadline, until cut.
pub(super) struct Patient<'w> {
    socket: &'w TcpStream,
    address: Option<SocketAddr>,
    waits: &'w mut Waits,
    call: &'w Current,
    fault: Option<Fault>,
}

impl<'w> Patient<'w> {
    fn new(
        socket: &'w TcpStream,
        address: Option<SocketAddr>,
        waits: &'w mut Waits,
        call: &'w Current,
    ) -> Patient<'w> {
        Patient { socket, address, waits, call, fault: None }
    }

    /// What an I/O error means for the call.
    fn judge<T>(&mut self, result: io::Result<T>) -> Result<T, Fault> {
        let error = match result {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        if self.call.cut.is_cut() {
            return Err(self.call.cut_fault());
        }
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        Err(match inner {
            Some(inner) => tls::fault(inner, self.call),
            // Ours are WouldBlock: this is the kernel giving up on a peer that is gone.
            None if error.kind() == ErrorKind::TimedOut => self.explained(self.call.timeout()),
            None => self.call.closed(),
        })
    }

    /// Repeats `operate` until it gets somewhere, waking for the pulse, the deadline and the cut.
    fn persist(
        &mut self,
        set_wait: fn(&TcpStream, &mut Waits, Duration) -> io::Result<()>,
        mut operate: impl FnMut(&TcpStream) -> io::Result<usize>,
    ) -> io::Result<usize> {
        loop {
            let patience = self.call.patience().map_err(|fault| {
                let fault = self.explained(fault);
                self.stop(fault)
            })?;
            set_wait(self.socket, self.waits, patience)?;
            match operate(self.socket) {
                // A cut shuts the socket down, which looks like an end; the rest of what came is not wanted.
                Ok(_) if self.call.cut.is_cut() => {
                    let cut = self.call.cut_fault();
                    return Err(self.stop(cut));
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                other => return other,
            }
        }
    }

    /// A peer that falls silent when there is no way to it any more is not to blame.
    fn explained(&self, fault: Fault) -> Fault {
        let lost = fault.kind == FaultKind::Timeout
            && self.address.is_some_and(|address| !way_out::leads_to(address));
        match lost {
            true => self.call.fault(FaultKind::Unreachable, "the way to it was lost"),
            false => fault,
        }
    }

    /// Keeps `fault` for [`Patient::judge`] while rustls passes the error on.
    fn stop(&mut self, fault: Fault) -> io::Error {
        self.fault = Some(fault);
        io::Error::other("stopped")
    }

    fn note_sent(&self, written: usize) {
        if written > 0 && self.call.watch.phase() >= Phase::Send {
            self.call.sent.set(true);
        }
    }
}

fn set_receive_wait(socket: &TcpStream, waits: &mut Waits, wanted: Duration) -> io::Result<()> {
    adjust(&mut waits.receive, wanted, |wait| socket.set_read_timeout(wait))
}

fn set_send_wait(socket: &TcpStream, waits: &mut Waits, wanted: Duration) -> io::Result<()> {
    adjust(&mut waits.send, wanted, |wait| socket.set_write_timeout(wait))
}

impl Read for Patient<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.persist(set_receive_wait, |mut socket| socket.read(into))
    }
}

impl Write for Patient<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.persist(set_send_wait, |mut socket| socket.write(bytes))?;
        self.note_sent(written);
        Ok(written)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let written = self.persist(set_send_wait, |mut socket| socket.write_vectored(slices))?;
        self.note_sent(written);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_in_place_is_kept_while_it_serves() {
        let check = |now_ms: u64, wanted_ms: u64, kept: bool| {
            let mut now = Some(Duration::from_millis(now_ms));
            let mut set = false;
            adjust(&mut now, Duration::from_millis(wanted_ms), |_| {
                set = true;
                Ok(())
            })
            .unwrap();
            assert_eq!(!set, kept, "{now_ms} for {wanted_ms}");
        };
        check(60_000, 60_000, true);
        check(60_000, 59_000, true);
        check(60_000, 50_000, false);
        check(15_000, 60_000, true);
        check(300, 60_000, false);
        check(300, 400, true);
        check(400, 300, false);
        let mut none = None;
        adjust(&mut none, Duration::ZERO, |wait| {
            assert_eq!(wait, Some(WAIT_MIN));
            Ok(())
        })
        .unwrap();
    }
}
