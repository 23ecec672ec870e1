//! The handle that cuts an upstream call from another thread.
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use parking_lot::Mutex;

/// Cuts one upstream call from another thread.
///
/// The transport registers the socket it is using; `cut` shuts that socket down and remembers it, so that a call cut
/// before it connects never begins. The socket is shared, not duplicated, and given back when the call ends, so that
/// a pooled connection that serves somebody else later is never touched.
#[derive(Debug, Default)]
pub struct Cut(Mutex<CutState>);

#[derive(Debug, Default)]
struct CutState {
    cut: bool,
    socket: Option<Arc<TcpStream>>,
}

impl Cut {
    pub fn new() -> Arc<Cut> {
        Arc::default()
    }

    /// Ends the call now, or before it begins.
    pub fn cut(&self) {
        let mut state = self.0.lock();
        state.cut = true;
        if let Some(socket) = state.socket.take() {
            // An error means that the socket is closed already.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    pub fn is_cut(&self) -> bool {
        self.0.lock().cut
    }

    /// Names the socket in use; false when the call was cut already and must not go on.
    pub fn hold(&self, socket: &Arc<TcpStream>) -> bool {
        let mut state = self.0.lock();
        if !state.cut {
            state.socket = Some(Arc::clone(socket));
        }
        !state.cut
    }

    /// The call no longer uses its socket.
    pub fn release(&self) {
        self.0.lock().socket = None;
    }
}
