//! The handle that cuts an upstream call from another thread.
use std::fmt;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Cuts one upstream call from another thread.
///
/// The transport registers the socket it is using; `cut` shuts that socket down and remembers it, so that a call cut
/// before it connects never begins. The socket is shared, not duplicated, and given back when the call ends, so that
/// a pooled connection that serves somebody else later is never touched.
#[derive(Debug, Default)]
pub struct Cut {
    state: Mutex<CutState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct CutState {
    cut: bool,
    socket: Option<Arc<TcpStream>>,
    holds: u64,
    then: Option<Then>,
}

/// What else happens at the cut.
struct Then(Box<dyn FnOnce() + Send>);

impl fmt::Debug for Then {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Then")
    }
}

/// Stands for one registration of a socket. One handle serves the attempts of a turn in succession, and the end of an
/// earlier one must not let go of the socket of a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold(u64);

impl Cut {
    /// A handle that has not cut anything.
    pub fn new() -> Arc<Cut> {
        Arc::default()
    }

    /// Ends the call now, or before it begins.
    pub fn cut(&self) {
        let mut state = self.state.lock();
        state.cut = true;
        if let Some(socket) = state.socket.take() {
            // An error means that the socket is closed already.
            let _ = socket.shutdown(Shutdown::Both);
        }
        self.changed.notify_all();
        let then = state.then.take();
        drop(state);
        if let Some(Then(then)) = then {
            then();
        }
    }

    /// Has `then` run once at the cut, on the thread that cuts; at once if that was before. It must not block. There is one
    /// only: it takes the place of an earlier one.
    pub fn on_cut(&self, then: Box<dyn FnOnce() + Send>) {
        let mut state = self.state.lock();
        if state.cut {
            drop(state);
            then();
        } else {
            state.then = Some(Then(then));
        }
    }

    /// Sleeps for `time`, or until the cut if that comes first; whether it came.
    pub fn wait(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.cut {
            self.changed.wait_for(&mut state, time);
        }
        state.cut
    }

    /// Whether the call was cut.
    pub fn is_cut(&self) -> bool {
        self.state.lock().cut
    }

    /// The socket in use, if there is one and the call was not cut.
    pub fn socket(&self) -> Option<Arc<TcpStream>> {
        self.state.lock().socket.clone()
    }

    /// Names the socket in use; `None` when the call was cut already and must not go on.
    pub fn hold(&self, socket: &Arc<TcpStream>) -> Option<Hold> {
        let mut state = self.state.lock();
        if state.cut {
            return None;
        }
        state.socket = Some(Arc::clone(socket));
        state.holds += 1;
        Some(Hold(state.holds))
    }

    /// The call that made `hold` no longer uses its socket.
    pub fn release(&self, hold: Hold) {
        let mut state = self.state.lock();
        if state.holds == hold.0 {
            state.socket = None;
        }
    }
}
