//! Our transport under ureq: one buffer for both directions, head and body of a request in one write, no system call
//! that a call does not need.
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use ureq::unversioned::transport::{Buffers, NextTimeout, Transport};

use super::idle::Idle;
use super::watch::{Current, Look, current};
use super::wire::Wire;
use crate::wire::exchange::{Fault, FaultKind, Phase};

/// Large enough for nearly all heads and for a burst of events. A request and its answer share it.
const BUFFER_BYTES: usize = 16 * 1024;
/// A head must fit into the buffer whole, so it may grow to this.
pub(super) const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Longest run of bytes that are neither a whole head nor part of a body. Interim answers and trailers are thrown away
/// as they come, so no buffer bounds them.
const BARREN_BYTES_MAX: usize = 2 * HEAD_BYTES_MAX;
/// With less room than this the output is sent before more is taken.
const ROOM_BYTES: usize = 1024;

/// A connection while it serves one call. Goes back to the idle ones when ureq has found its answer complete.
#[derive(Debug)]
pub(super) struct Line {
    /// Present until the line is dropped.
    wire: Option<Wire>,
    idle: Arc<Idle>,
    buffer: Buffer,
    /// Whether the head of the request has left.
    begun: bool,
    /// The peer stopped reading; it may have answered all the same.
    refuses: bool,
    /// The answer is complete, and another call may follow on this connection.
    reusable: bool,
}

impl Line {
    pub fn new(wire: Wire, idle: &Arc<Idle>) -> Line {
        Line {
            wire: Some(wire),
            idle: Arc::clone(idle),
            buffer: Buffer::default(),
            begun: false,
            refuses: false,
            reusable: false,
        }
    }

    /// Sends what is queued.
    fn flush(&mut self, call: &Current) -> Result<(), Fault> {
        let Some(wire) = self.wire.as_mut() else { return Err(call.closed()) };
        let queued = &self.buffer.bytes[..self.buffer.queued];
        if !queued.is_empty() && !self.refuses {
            let absolute = match self.begun {
                false if wire.peer.proxy.is_some() && !wire.peer.tls => absolute_form(queued, wire),
                _ => None,
            };
            match wire.send(absolute.as_deref().unwrap_or(queued), call) {
                // An answer may be on its way already, such as "413" to a body that is too large to be read.
                Err(fault) if fault.kind == FaultKind::Closed => self.refuses = true,
                other => other?,
            }
        }
        self.begun = true;
        self.buffer.queued = 0;
        Ok(())
    }

    fn receive(&mut self, call: &Current) -> Result<bool, Fault> {
        if self.buffer.queued > 0 {
            self.flush(call)?;
        }
        if !call.answered.get() {
            call.watch.set_phase(Phase::FirstByte);
        }
        if !self.buffer.make_room() {
            return Err(call.fault(FaultKind::TooLarge, "a head or a chunk size that does not end"));
        }
        let Some(wire) = self.wire.as_mut() else { return Err(call.closed()) };
        let end = self.buffer.end;
        let read = wire.receive(&mut self.buffer.bytes[end..], call)?;
        self.buffer.end += read;
        if read == 0 {
            call.ended.set(true);
        } else {
            call.answered.set(true);
            call.barren_bytes.set(call.barren_bytes.get() + read);
        }
        if call.barren_bytes.get() > BARREN_BYTES_MAX {
            return Err(call.fault(FaultKind::TooLarge, "interim answers or trailers that do not end"));
        }
        Ok(read > 0)
    }

    /// The same for a thread that makes no call: takes what has come. Whatever else it meets is left as it is.
    fn look(&mut self, may_look: bool) -> Result<bool, ureq::Error> {
        let room = self.buffer.make_room();
        let end = self.buffer.end;
        let read = match &mut self.wire {
            Some(wire) if room => wire.receive_now(&mut self.buffer.bytes[end..], may_look),
            _ => Ok(0),
        };
        let waits =
            |error: &io::Error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
        match read {
            Ok(read) if read > 0 => {
                self.buffer.end += read;
                Look::Came.note();
                return Ok(true);
            }
            Err(error) if waits(&error) && Look::now() == Look::Once => Look::Done.note(),
            Err(error) if waits(&error) => {}
            Ok(_) | Err(_) => Look::Unclear.note(),
        }
        // ureq passes this on, and keeps its place in the answer.
        Err(ureq::Error::Io(ErrorKind::WouldBlock.into()))
    }
}

/// The request with its target in the form that a proxy wants (RFC 9112, 3.2.2).
fn absolute_form(request: &[u8], wire: &Wire) -> Option<Vec<u8>> {
    let target = memchr::memchr(b' ', request)? + 1;
    let host = wire.peer.host_in_url();
    let prefix = match wire.peer.port {
        80 => format!("http://{host}"),
        port => format!("http://{host}:{port}"),
    };
    Some([&request[..target], prefix.as_bytes(), &request[target..]].concat())
}

impl Transport for Line {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffer
    }

    /// Queues; [`Transport::await_input`] sends the rest, so that a small request leaves in one write.
    fn transmit_output(&mut self, amount: usize, _: NextTimeout) -> Result<(), ureq::Error> {
        self.buffer.queued += amount;
        if amount > 0 && self.buffer.bytes.len() - self.buffer.queued >= ROOM_BYTES {
            return Ok(());
        }
        let call = current()?;
        self.flush(&call).map_err(|fault| call.fail(fault))
    }

    fn await_input(&mut self, _: NextTimeout) -> Result<bool, ureq::Error> {
        match Look::now() {
            Look::Never => {
                let call = current()?;
                self.receive(&call).map_err(|fault| call.fail(fault))
            }
            look => self.look(look == Look::Once),
        }
    }

    /// ureq asks once, when the answer is complete: its own pool is switched off, and ours looks again before use.
    fn is_open(&mut self) -> bool {
        let Ok(call) = current() else { return false };
        // From here on a cut of this call does not touch the socket; one that came before has spoilt it.
        call.release();
        let intact = !self.refuses && !call.ended.get() && !call.cut.is_cut();
        self.reusable = intact && self.wire.as_mut().is_some_and(|wire| !wire.has_leftovers());
        self.reusable
    }

    fn is_tls(&self) -> bool {
        self.wire.as_ref().is_some_and(|wire| wire.peer.tls)
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.reusable {
            if let Some(wire) = self.wire.take() {
                self.idle.put(wire, Instant::now());
            }
        }
    }
}

/// Buffers of calls that have ended, for those to come: the last one first, while it is warm. Idle connections have none.
static SPARES: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());
const SPARES_MAX: usize = 16;

/// First the request queues in it, then the answer arrives in it.
#[derive(Debug, Default)]
struct Buffer {
    bytes: Vec<u8>,
    /// Output: `0..queued` waits to be sent.
    queued: usize,
    /// Input: `start..end` waits to be parsed.
    start: usize,
    end: usize,
    /// Whether the last look at the input used any of it.
    progress: bool,
}

impl Buffer {
    fn ensure(&mut self) {
        if self.bytes.is_empty() {
            let spare = SPARES.lock().pop();
            // Fresh zeroed memory costs no page before it is used, and small answers use one.
            self.bytes = spare.unwrap_or_else(|| vec![0; BUFFER_BYTES]);
        }
    }

    /// Makes room behind the input; false when it has grown as far as it may.
    fn make_room(&mut self) -> bool {
        self.ensure();
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == self.bytes.len() {
            if self.start > 0 {
                self.bytes.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
            } else if self.bytes.len() < HEAD_BYTES_MAX {
                self.bytes.resize(self.bytes.len() * 2, 0);
            } else {
                return false;
            }
        }
        true
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.bytes.len() == BUFFER_BYTES {
            let mut spares = SPARES.lock();
            if spares.len() < SPARES_MAX {
                spares.push(std::mem::take(&mut self.bytes));
            }
        }
    }
}

impl Buffers for Buffer {
    fn output(&mut self) -> &mut [u8] {
        self.ensure();
        &mut self.bytes[self.queued..]
    }

    fn input(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    fn input_append_buf(&mut self) -> &mut [u8] {
        self.make_room();
        &mut self.bytes[self.end..]
    }

    fn input_appended(&mut self, amount: usize) {
        self.end += amount;
    }

    fn input_consume(&mut self, amount: usize) {
        self.progress = amount > 0;
        self.start += amount;
    }

    /// The first part is scratch space for chunked requests, which we never make.
    fn tmp_and_output(&mut self) -> (&mut [u8], &mut [u8]) {
        (&mut [], self.output())
    }

    fn can_use_input(&self) -> bool {
        self.start < self.end && self.progress
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use super::*;
    use crate::upstream::cut::Cut;
    use crate::upstream::watch::{Freshness, Watch, enter};
    use crate::upstream::wire::Peer;

    /// A line, and the other end of its connection.
    fn line() -> (Line, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let peer = Peer { tls: false, host: "up.test".into(), port: 80, proxy: None };
        let (other, _) = listener.accept().unwrap();
        (Line::new(Wire::new(peer, Arc::new(socket)), &Arc::default()), other)
    }

    fn transmit(line: &mut Line, bytes: &[u8]) {
        line.buffers().output()[..bytes.len()].copy_from_slice(bytes);
        line.transmit_output(bytes.len(), NextTimeout::default()).unwrap();
    }

    #[test]
    fn head_and_body_leave_together_once_an_answer_is_awaited() {
        let within = Duration::from_secs(20);
        let call =
            Current::new(&Cut::new(), &Watch::new(Instant::now() + within), Freshness::Any, within, None);
        let _entered = enter(&call);
        call.watch.set_phase(Phase::Send);
        let (mut line, mut other) = line();
        transmit(&mut line, b"head ");
        transmit(&mut line, b"body");
        other.set_nonblocking(true).unwrap();
        assert_eq!(other.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert!(!call.sent.get());
        other.write_all(b"answer").unwrap();
        assert!(line.await_input(NextTimeout::default()).unwrap());
        assert_eq!(line.buffers().input(), b"answer");
        other.set_nonblocking(false).unwrap();
        let mut request = [0; 100];
        let read = other.read(&mut request).unwrap();
        assert_eq!(&request[..read], b"head body");
        assert!(call.sent.get() && call.answered.get());
    }

    #[test]
    fn buffers_go_from_call_to_call() {
        // Other tests take and leave buffers beside this one, so it looks at the number of them only.
        let lines: Vec<_> = (0..2 * SPARES_MAX).map(|_| line()).collect();
        for (mut line, _end) in lines {
            assert_eq!(line.buffers().output().len(), BUFFER_BYTES);
        }
        let kept = SPARES.lock().len();
        assert!((1..=SPARES_MAX).contains(&kept), "{kept}");
    }
}
