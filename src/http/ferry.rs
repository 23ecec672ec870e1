//! Carries streams that flow by themselves: one thread for all, told by the kernel where chunks have come.
//!
//! The thread of each such stream sleeps meanwhile. It takes its stream back when that needs its turn again, and when it
//! is time for a keep-alive or the stream has stalled, so that nobody here has to look at the clock.
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::answer::Channel;
use super::sock::{self, Interest, ReadyQueue};
use crate::base::clock;
use crate::relay::flow::Flow;

/// Streams looked at after one wait.
const BATCH: usize = 64;
/// Bytes read at a time.
const PIECE_BYTES: usize = 4 * 1024;

/// Until a thread that finds its stream in hand looks again. It is told of a return only, not of each chunk.
const IN_HAND: Duration = Duration::from_millis(1);

/// The one ferry, begun by the first stream that it can be begun for: the system may be short of descriptors or threads.
static FERRY: Mutex<Option<Arc<Ferry>>> = Mutex::new(None);

/// What is left to send when a stream comes back.
type Unsent = io::Result<Vec<u8>>;

/// Sends what comes of `flow` into `channel` until it needs its turn. Gives the flow back, and what the client had no room
/// for.
pub fn carry(mut flow: Box<Flow>, channel: Channel) -> (Box<Flow>, Unsent) {
    // What has come already shows on no socket any more.
    if let Some(unsent) = step(&mut flow, &channel, &mut [0; PIECE_BYTES]) {
        return (flow, unsent);
    }
    match Ferry::get() {
        Some(ferry) => ferry.carry(flow, channel),
        None => (flow, Ok(Vec::new())),
    }
}

/// Passes on what has come; `None` when that is all there is to do.
fn step(flow: &mut Flow, channel: &Channel, piece: &mut [u8]) -> Option<Unsent> {
    let flows = flow.advance(piece);
    if !flows {
        // Its turn sends what came last, since more may belong to it.
        return Some(Ok(Vec::new()));
    }
    let frames = flow.gate.frames();
    if frames.is_empty() {
        return None;
    }
    let unsent = channel.send_now(frames);
    flow.sent();
    Some(unsent).filter(|unsent| !matches!(unsent, Ok(rest) if rest.is_empty()))
}

struct Ferry {
    queue: ReadyQueue,
    /// By descriptor of the upstream's socket. A place is taken over by the next stream of the same number.
    berths: Mutex<Vec<Weak<Berth>>>,
}

/// The place of one stream, where its thread waits.
struct Berth {
    channel: Channel,
    state: Mutex<State>,
    /// Told when the stream is to be taken back.
    returned: Condvar,
}

enum State {
    Flowing(Box<Flow>),
    /// The ferry's thread is busy with it.
    InHand,
    /// It needs its turn.
    Returned(Box<Flow>, Unsent),
    /// Our own code has failed on it.
    Lost,
    /// Its thread has it.
    Taken,
}

impl Ferry {
    fn get() -> Option<Arc<Ferry>> {
        let mut known = FERRY.lock();
        if known.is_none() {
            let ferry = Arc::new(Ferry { queue: ReadyQueue::new().ok()?, berths: Mutex::default() });
            let own = Arc::clone(&ferry);
            thread::Builder::new().name("ferry".into()).spawn(move || own.run()).ok()?;
            *known = Some(ferry);
        }
        known.clone()
    }

    fn carry(&self, flow: Box<Flow>, channel: Channel) -> (Box<Flow>, Unsent) {
        // The call was made far deeper down than this.
        sock::release_idle_stack();
        let at = flow.socket().as_raw_fd();
        let berth = Arc::new(Berth { channel, state: Mutex::new(State::Taken), returned: Condvar::new() });
        let mut berths = self.berths.lock();
        if berths.len() <= place(at) {
            berths.resize(place(at) + 1, Weak::new());
        }
        berths[place(at)] = Arc::downgrade(&berth);
        drop(berths);
        // Locked, so that the ferry finds the stream when it is told of it.
        let mut state = berth.state.lock();
        if self.queue.add(flow.socket(), Interest::Input).is_err() {
            return (flow, Ok(Vec::new()));
        }
        *state = State::Flowing(flow);
        loop {
            match std::mem::replace(&mut *state, State::Taken) {
                State::Returned(flow, unsent) => return (flow, unsent),
                State::Flowing(flow) if flow.wake_by() <= clock::instant() => {
                    self.let_go(&flow);
                    return (flow, Ok(Vec::new()));
                }
                State::Flowing(flow) => {
                    let wake_by = flow.wake_by();
                    *state = State::Flowing(flow);
                    berth.returned.wait_until(&mut state, wake_by);
                }
                State::InHand => {
                    *state = State::InHand;
                    berth.returned.wait_for(&mut state, IN_HAND);
                }
                State::Lost | State::Taken => panic!("a stream was lost on the ferry"),
            }
        }
    }

    fn run(&self) {
        let mut ready = [0; BATCH];
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            for at in self.queue.wait(&mut ready, -1) {
                let berth = self.berths.lock().get(place(*at)).and_then(Weak::upgrade);
                if let Some(berth) = berth {
                    self.attend(&berth, &mut piece);
                }
            }
        }
    }

    /// Passes on what has come on one stream.
    fn attend(&self, berth: &Berth, piece: &mut [u8]) {
        let mut state = berth.state.lock();
        let mut flow = match std::mem::replace(&mut *state, State::InHand) {
            State::Flowing(flow) => flow,
            // An earlier stream with this number was meant, or its thread was faster.
            other => return *state = other,
        };
        drop(state);
        let stepped = catch_unwind(AssertUnwindSafe(|| step(&mut flow, &berth.channel, piece)));
        let next = match stepped {
            Ok(None) => State::Flowing(flow),
            Ok(Some(unsent)) => {
                self.let_go(&flow);
                State::Returned(flow, unsent)
            }
            Err(_) => {
                self.let_go(&flow);
                State::Lost
            }
        };
        let returned = !matches!(next, State::Flowing(_));
        *berth.state.lock() = next;
        if returned {
            berth.returned.notify_one();
        }
    }

    fn let_go(&self, flow: &Flow) {
        // It is watched, so this cannot fail.
        let _ = self.queue.remove(flow.socket());
    }
}

fn place(descriptor: RawFd) -> usize {
    usize::try_from(descriptor).unwrap_or(0)
}
