//! What a running call is watched by: its deadline, its pulse, its cut handle, and notes on how far it came.
//!
//! ureq calls our transport without a word about whose request it carries, so the calling thread's current call is
//! kept in a thread-local for as long as ureq is inside.
use std::cell::{Cell, RefCell};
use std::fmt;
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::cut::{Cut, Hold};
use super::proxy::Proxy;
use crate::wire::exchange::{Fault, FaultKind, Phase};

/// Called whenever its instant passes while a call waits; says when to call next, `None` for never.
pub type Pulse = Box<dyn FnMut() -> Option<Instant>>;

/// The deadline and the pulse of one call, shared on one thread between the story and the transport.
///
/// Whatever blocks in a call blocks until the next of the two instants. The story may move both at any time that it
/// has the thread, also from within the pulse.
pub struct Watch {
    deadline: Cell<Instant>,
    phase: Cell<Phase>,
    pulse_at: Cell<Option<Instant>>,
    on_pulse: RefCell<Option<Pulse>>,
}

impl Watch {
    /// A watch that ends the call at `deadline`, in whatever phase it is then.
    pub fn new(deadline: Instant) -> Rc<Watch> {
        Rc::new(Watch {
            deadline: Cell::new(deadline),
            phase: Cell::new(Phase::Resolve),
            pulse_at: Cell::new(None),
            on_pulse: RefCell::new(None),
        })
    }

    /// When the call ends, however far it came.
    pub fn deadline(&self) -> Instant {
        self.deadline.get()
    }

    /// Moves the deadline: to the idle limit after each event of a stream, for instance.
    pub fn set_deadline(&self, deadline: Instant) {
        self.deadline.set(deadline);
    }

    /// How far the call came; a fault names it.
    pub fn phase(&self) -> Phase {
        self.phase.get()
    }

    /// The client moves the phase up to [`Phase::FirstByte`]; what comes after the head is for the caller to say.
    pub fn set_phase(&self, phase: Phase) {
        self.phase.set(phase);
    }

    /// When to call the pulse next.
    pub fn set_pulse(&self, at: Option<Instant>) {
        self.pulse_at.set(at);
    }

    /// When the pulse is called next.
    pub fn pulse_at(&self) -> Option<Instant> {
        self.pulse_at.get()
    }

    /// What to call then. While a TCP connection is being made the pulse waits for the outcome.
    pub fn on_pulse(&self, pulse: Pulse) {
        *self.on_pulse.borrow_mut() = Some(pulse);
    }

    /// How long the thread may block from now on, after calling the pulse if it is due; `None` past the deadline.
    fn patience(&self) -> Option<Duration> {
        let mut now = Instant::now();
        if self.pulse_at.get().is_some_and(|at| at <= now) {
            self.pulse_at.set(None);
            // Taken out while it runs, because it may set another one.
            let pulse = self.on_pulse.borrow_mut().take();
            if let Some(mut pulse) = pulse {
                let next = pulse();
                self.pulse_at.set(next);
                self.on_pulse.borrow_mut().get_or_insert(pulse);
                now = Instant::now();
            }
        }
        let left = self.deadline.get().checked_duration_since(now).filter(|left| !left.is_zero())?;
        let until_pulse = self.pulse_at.get().map(|at| at.saturating_duration_since(now));
        Some(until_pulse.map_or(left, |pulse| left.min(pulse)))
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("phase", &self.phase.get()).finish_non_exhaustive()
    }
}

/// Which connections a call may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freshness {
    /// An idle one if there is one.
    Any,
    /// A new one: an idle one has just died under this request.
    New,
}

/// The call that this thread is making.
#[derive(Debug)]
pub(super) struct Current {
    pub cut: Arc<Cut>,
    pub watch: Rc<Watch>,
    pub freshness: Freshness,
    /// For TCP, proxy and TLS together.
    pub connect_within: Duration,
    pub proxy: Option<Arc<Proxy>>,
    /// Its claim on the cut handle.
    held: Cell<Option<Hold>>,
    /// Ends the connecting before the deadline of the call.
    pub connect_by: Cell<Option<Instant>>,
    /// Whether its connection has served another call before.
    pub reused: Cell<bool>,
    /// Whether any byte of the request may have left.
    pub sent: Cell<bool>,
    /// Whether any byte of an answer came.
    pub answered: Cell<bool>,
    /// Bytes of the answer since the last that said something: a whole head, or a piece of the body.
    pub barren_bytes: Cell<usize>,
    /// Whether the peer ended the connection.
    pub ended: Cell<bool>,
    /// What went wrong below ureq, whose own errors know less.
    fault: RefCell<Option<Fault>>,
}

impl Current {
    pub fn new(
        cut: &Arc<Cut>,
        watch: &Rc<Watch>,
        freshness: Freshness,
        connect_within: Duration,
        proxy: Option<Arc<Proxy>>,
    ) -> Rc<Current> {
        Rc::new(Current {
            cut: Arc::clone(cut),
            watch: Rc::clone(watch),
            freshness,
            connect_within,
            proxy,
            held: Cell::new(None),
            connect_by: Cell::new(None),
            reused: Cell::new(false),
            sent: Cell::new(false),
            answered: Cell::new(false),
            barren_bytes: Cell::new(0),
            ended: Cell::new(false),
            fault: RefCell::new(None),
        })
    }

    /// Lets a cut reach `socket`; a fault when it came already.
    pub fn hold(&self, socket: &Arc<TcpStream>) -> Result<(), Fault> {
        self.held.set(self.cut.hold(socket));
        if self.held.get().is_some() { Ok(()) } else { Err(self.cut_fault()) }
    }

    /// A cut no longer touches the socket.
    pub fn release(&self) {
        if let Some(hold) = self.held.take() {
            self.cut.release(hold);
        }
    }

    /// How long the thread may block from now on; a fault when the call is cut or out of time.
    pub fn patience(&self) -> Result<Duration, Fault> {
        if self.cut.is_cut() {
            return Err(self.cut_fault());
        }
        let patience = self.watch.patience().ok_or_else(|| self.timeout())?;
        let Some(connect_by) = self.connect_by.get() else { return Ok(patience) };
        match connect_by.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            Some(left) => Ok(patience.min(left)),
            None => Err(self.timeout()),
        }
    }

    pub fn fault(&self, kind: FaultKind, message: impl Into<String>) -> Fault {
        Fault { phase: self.watch.phase(), kind, message: message.into(), request_sent: self.sent.get() }
    }

    pub fn cut_fault(&self) -> Fault {
        self.fault(FaultKind::Cut, "the call was cut")
    }

    pub fn timeout(&self) -> Fault {
        let message = match self.watch.phase() {
            Phase::Resolve => "its name was not resolved in time",
            Phase::Connect => "no connection in time",
            Phase::Send => "the request was not taken in time",
            Phase::FirstByte => "no answer in time",
            Phase::Stream | Phase::End => "the answer stalled",
        };
        self.fault(FaultKind::Timeout, message)
    }

    /// The peer went away before the answer was whole.
    pub fn closed(&self) -> Fault {
        let message = match self.answered.get() {
            true => "the connection was closed before the answer was whole",
            false => "the connection was closed before any answer",
        };
        self.fault(FaultKind::Closed, message)
    }

    /// Keeps `fault` for the client to find, and gives ureq an error that it passes on as it is.
    pub fn fail(&self, fault: Fault) -> ureq::Error {
        *self.fault.borrow_mut() = Some(fault);
        ureq::Error::ConnectionFailed
    }

    pub fn take_fault(&self) -> Option<Fault> {
        self.fault.borrow_mut().take()
    }
}

impl Drop for Current {
    /// The cut handle must not keep a socket open, nor reach it once it serves somebody else.
    fn drop(&mut self) {
        self.release();
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<Current>>> = const { RefCell::new(None) };
}

/// Makes `call` the current one of this thread until the guard is dropped.
pub(super) fn enter(call: &Rc<Current>) -> Entered {
    Entered(CURRENT.replace(Some(Rc::clone(call))))
}

/// Puts the previous call back when dropped.
pub(super) struct Entered(Option<Rc<Current>>);

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// The current call. ureq runs only inside [`enter`], so an error here is a bug, not a panic.
pub(super) fn current() -> Result<Rc<Current>, ureq::Error> {
    CURRENT.with_borrow(Clone::clone).ok_or(ureq::Error::ConnectionFailed)
}

thread_local! {
    static LOOK: Cell<Look> = const { Cell::new(Look::Never) };
}

/// What a thread that makes no call may do with a socket, and what it met there. It never waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Outside of a read that was lent.
    Never,
    /// It may look at the socket once.
    Once,
    /// It has looked.
    Done,
    /// It has looked, and something came.
    Came,
    /// It met something that the call has to judge.
    Unclear,
}

impl Look {
    /// What this thread may do now.
    pub fn now() -> Look {
        LOOK.get()
    }

    /// Notes that this thread has looked, and what it met.
    pub fn note(self) {
        LOOK.set(self);
    }
}

/// Lets this thread read what was lent, until dropped.
pub(super) struct Looking(());

impl Looking {
    pub fn begin(may_look: bool) -> Looking {
        LOOK.set(if may_look { Look::Once } else { Look::Done });
        Looking(())
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        LOOK.set(Look::Never);
    }
}
