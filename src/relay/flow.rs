//! A stream in the midst of its answer, where each chunk is passed on like the one before: for this it needs neither its
//! turn nor its thread.
//!
//! A thread for each stream would be woken for each chunk. One thread that carries many takes several each time it is
//! woken, which halves what a chunk costs.
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::gate::Gate;
use super::turn::Heard;
use crate::base::clock;
use crate::upstream::client::{Glance, Inflow};

/// The stream, and what it takes along from its turn. It never waits; its turn looks after it when it can no longer flow
/// by itself, and at [`Flow::wake_by`].
pub struct Flow {
    pub gate: Gate,
    pub inflow: Inflow,
    /// Longest wait between data events.
    pub idle: Duration,
    /// Longest silence towards the client.
    pub keep_alive: Duration,
    /// When the stream counts as stalled.
    pub deadline: Instant,
    /// When the client is to hear from us.
    pub pulse_at: Instant,
    pub heard: Heard,
}

impl Flow {
    /// Takes what has come, and shapes it. False when the turn has to go on with it; frames to send may be there in both
    /// cases. `piece` is room to read into.
    pub fn advance(&mut self, piece: &mut [u8]) -> bool {
        let mut may_look = true;
        loop {
            let count = match self.inflow.read(piece, may_look) {
                Glance::Bytes(count) => count,
                Glance::Nothing => return true,
                Glance::Unclear => return false,
            };
            may_look = false;
            if self.gate.push(&piece[..count]) {
                self.deadline = clock::instant() + self.idle;
            }
            if !self.gate.runs() || self.gate.wants_top_up().is_some() {
                return false;
            }
        }
    }

    /// The frames have left.
    pub fn sent(&mut self) {
        self.heard.frames(self.gate.frames());
        self.gate.sent();
        self.pulse_at = clock::instant() + self.keep_alive;
    }

    /// Input here is what it waits for.
    pub fn socket(&self) -> &TcpStream {
        self.inflow.socket()
    }

    /// When its turn has to look after it, though nothing came.
    pub fn wake_by(&self) -> Instant {
        self.deadline.min(self.pulse_at)
    }
}
