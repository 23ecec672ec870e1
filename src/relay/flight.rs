//! Identical requests at the same time: one of them leads and is served, the others wait for what it gets. They hold no
//! worker's place.
//!
//! The call belongs to all members: it is cut only when the last of them has left, whoever that is. What the leader is
//! told instead of an answer, all are told, at once.
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::turn::Controls;
use crate::cache::exact::Facts;
use crate::cache::key::Key;
use crate::catalog::ModelIx;
use crate::store::RowCache;
use crate::upstream::cut::Cut;
use crate::wire::error::ApiError;

/// Calls that are shared at once; there cannot be more than places of workers and of their queue by much.
const FLIGHTS_MAX: usize = 4_096;
/// Members of one flight. One more makes a call of its own.
const MEMBERS_MAX: usize = 4_096;

/// What identical requests have in common beside the models that they may be served by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    pub key: Key,
    /// The model string as it was asked for.
    pub requested: Arc<str>,
    pub controls: Controls,
    /// The number of the snapshot that they use.
    pub snapshot: u64,
}

/// An answer that all members get.
#[derive(Clone, Debug)]
pub struct Shared {
    pub facts: Facts,
    /// In the snapshot that all members use.
    pub at: ModelIx,
    pub body: Arc<[u8]>,
    /// How those come by it who did not ask for it: from memory, or by the meaning of their question.
    pub tier: RowCache,
    pub score: Option<f32>,
}

/// How a flight ended.
#[derive(Clone, Debug)]
pub enum Landing {
    Answer(Shared),
    Error(Box<ApiError>),
}

/// All flights that are under way.
#[derive(Debug, Default)]
pub struct Flights {
    open: Mutex<HashMap<Route, Seats>>,
}

/// One flight and who is on it.
#[derive(Debug)]
struct Seats {
    flight: Arc<Flight>,
    /// The models that its leader may be served by: for some client keys the same string means fewer.
    models: Vec<ModelIx>,
    members: usize,
}

#[derive(Debug)]
struct Flight {
    /// Ends the call.
    cut: Arc<Cut>,
    landing: Mutex<Option<Landing>>,
    landed: Condvar,
}

/// What became of a request that asked for a seat.
pub enum Boarding {
    /// It is the first of its kind, and has to make the call.
    Lead(Lead),
    /// Somebody else makes the call.
    Follow(Member),
    /// It has to make a call of its own that nobody shares.
    Alone,
}

impl Flights {
    /// A seat on the flight of requests like this one.
    pub fn board(self: &Arc<Flights>, route: Route, models: &[ModelIx]) -> Boarding {
        let mut open = self.open.lock();
        let is_full = open.len() >= FLIGHTS_MAX;
        if let Some(seats) = open.get_mut(&route) {
            if seats.members >= MEMBERS_MAX || seats.models != models {
                return Boarding::Alone;
            }
            seats.members += 1;
            let flight = Arc::clone(&seats.flight);
            return Boarding::Follow(Member(Seat { flights: Arc::clone(self), route, flight }));
        }
        if is_full {
            return Boarding::Alone;
        }
        let flight = Arc::new(Flight { cut: Cut::new(), landing: Mutex::new(None), landed: Condvar::new() });
        let seats = Seats { flight: Arc::clone(&flight), models: models.to_vec(), members: 1 };
        open.insert(route.clone(), seats);
        drop(open);
        let seat = Arc::new(Seat { flights: Arc::clone(self), route, flight });
        Boarding::Lead(Lead { seat, taken_off: false, landed: AtomicBool::new(false) })
    }

    /// How many flights are under way, and how many members they have together.
    pub fn load(&self) -> (usize, usize) {
        let open = self.open.lock();
        (open.len(), open.values().map(|seats| seats.members).sum())
    }

    /// One member less; the last one takes the call with it.
    fn leave(&self, route: &Route, flight: &Arc<Flight>) {
        let mut open = self.open.lock();
        let Some(seats) = open.get_mut(route).filter(|seats| Arc::ptr_eq(&seats.flight, flight)) else {
            return;
        };
        seats.members -= 1;
        if seats.members == 0 {
            // Nobody may board a flight that is about to be cut.
            open.remove(route);
            drop(open);
            flight.cut.cut();
        }
    }

    fn close(&self, route: &Route, flight: &Arc<Flight>) {
        let mut open = self.open.lock();
        if open.get(route).is_some_and(|seats| Arc::ptr_eq(&seats.flight, flight)) {
            open.remove(route);
        }
    }
}

/// A place on a flight.
#[derive(Debug)]
struct Seat {
    flights: Arc<Flights>,
    route: Route,
    flight: Arc<Flight>,
}

impl Seat {
    fn leave(&self) {
        self.flights.leave(&self.route, &self.flight);
    }
}

/// The one that makes the call. Dropped before it has landed, it tells all others that it failed.
#[derive(Debug)]
pub struct Lead {
    seat: Arc<Seat>,
    /// The call was begun.
    taken_off: bool,
    landed: AtomicBool,
}

impl Lead {
    /// Gives up the leader's own seat once `own` is cut, because its client has left. Gives what ends the call, which is
    /// cut then only if nobody else is there.
    pub fn leave_with(&self, own: &Cut) -> Arc<Cut> {
        let seat = Arc::clone(&self.seat);
        own.on_cut(Box::new(move || seat.leave()));
        Arc::clone(self.cut())
    }

    /// What ends the call.
    pub fn cut(&self) -> &Arc<Cut> {
        &self.seat.flight.cut
    }

    /// Begins the call.
    pub fn take_off(&mut self) {
        self.taken_off = true;
    }

    /// Gives all others what the leader got. Only the first landing counts.
    pub fn land(&self, landing: Landing) {
        if self.landed.swap(true, Ordering::AcqRel) {
            return;
        }
        let Seat { flights, route, flight } = &*self.seat;
        // First, so that whoever comes now finds the answer in memory, or tries anew.
        flights.close(route, flight);
        *flight.landing.lock() = Some(landing);
        flight.landed.notify_all();
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        let error = if self.taken_off {
            ApiError::new(500, "", "the gateway failed while serving this request; its log tells more")
        } else {
            let message = "all workers are busy and the queue is full; try again in a moment";
            ApiError::new(503, "overloaded", message).retry_after(1_000)
        };
        self.land(Landing::Error(Box::new(error)));
    }
}

/// One that waits. Dropped, it leaves the flight.
#[derive(Debug)]
pub struct Member(Seat);

impl Member {
    /// How the flight ended, if it did within `patience`.
    pub fn wait(&self, patience: Duration) -> Option<Landing> {
        let Flight { landing, landed, .. } = &*self.0.flight;
        let mut landing = landing.lock();
        if landing.is_none() {
            landed.wait_for(&mut landing, patience);
        }
        landing.clone()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // After a landing there is nothing left to leave.
        self.0.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(requested: &str) -> Route {
        Route { key: Key([1; 32]), requested: requested.into(), controls: Controls::default(), snapshot: 1 }
    }

    fn models(count: u16) -> Vec<ModelIx> {
        (0..count).map(|model| ModelIx { provider: 0, model }).collect()
    }

    fn board(flights: &Arc<Flights>, requested: &str) -> Boarding {
        flights.board(route(requested), &models(2))
    }

    fn lead(flights: &Arc<Flights>) -> Lead {
        match board(flights, "auto") {
            Boarding::Lead(lead) => lead,
            _ => panic!("there is a flight already"),
        }
    }

    fn follow(flights: &Arc<Flights>) -> Member {
        match board(flights, "auto") {
            Boarding::Follow(member) => member,
            _ => panic!("there is no flight"),
        }
    }

    fn status(landing: Option<Landing>) -> Option<u16> {
        match landing? {
            Landing::Error(error) => Some(error.status),
            Landing::Answer(_) => Some(200),
        }
    }

    #[test]
    fn all_members_get_what_the_leader_got() {
        let flights = Arc::new(Flights::default());
        let leader = lead(&flights);
        let members = [follow(&flights), follow(&flights)];
        assert_eq!(flights.load(), (1, 3));
        assert_eq!(status(members[0].wait(Duration::ZERO)), None);
        leader.land(Landing::Error(Box::new(ApiError::new(429, "x", "later").retry_after(7_000))));
        assert_eq!(flights.load(), (0, 0));
        assert!(members.iter().all(|member| status(member.wait(Duration::ZERO)) == Some(429)));
        leader.land(Landing::Error(Box::new(ApiError::new(500, "", "never"))));
        let next = lead(&flights);
        drop(members);
        assert_eq!(flights.load(), (1, 1), "whoever was on the last one has no seat on this one");
        drop((leader, next));
        assert_eq!(flights.load(), (0, 0));
    }

    #[test]
    fn the_call_is_cut_only_when_the_last_member_left() {
        let flights = Arc::new(Flights::default());
        let (mut leader, own) = (lead(&flights), Cut::new());
        let call = leader.leave_with(&own);
        leader.take_off();
        let (first, second) = (follow(&flights), follow(&flights));
        own.cut();
        drop(first);
        assert!(!call.is_cut());
        assert_eq!(flights.load(), (1, 1));
        drop(second);
        assert!(call.is_cut());
        assert!(matches!(board(&flights, "auto"), Boarding::Lead(_)), "nobody boards a flight that was cut");
    }

    #[test]
    fn a_leader_whose_client_left_before_it_began_takes_off_for_the_others_only() {
        let flights = Arc::new(Flights::default());
        let (leader, own) = (lead(&flights), Cut::new());
        own.cut();
        assert!(leader.leave_with(&own).is_cut());
        let (leader, member) = (lead(&flights), follow(&flights));
        assert!(!leader.leave_with(&own).is_cut());
        drop(member);
        assert!(leader.cut().is_cut());
    }

    #[test]
    fn a_leader_that_is_lost_frees_the_others() {
        let flights = Arc::new(Flights::default());
        let (leader, member) = (lead(&flights), follow(&flights));
        drop(leader);
        assert_eq!(status(member.wait(Duration::ZERO)), Some(503), "it found no worker");
        let (mut leader, member) = (lead(&flights), follow(&flights));
        leader.take_off();
        drop(leader);
        assert_eq!(status(member.wait(Duration::ZERO)), Some(500));
    }

    #[test]
    fn only_identical_requests_share_a_flight() {
        let flights = Arc::new(Flights::default());
        let leader = lead(&flights);
        assert!(matches!(board(&flights, "fast"), Boarding::Lead(_)), "of another name");
        assert!(matches!(flights.board(route("auto"), &models(1)), Boarding::Alone), "of fewer models");
        let hurried = Controls { max_attempts: Some(1), ..Controls::default() };
        let other = Route { controls: hurried, ..route("auto") };
        assert!(matches!(flights.board(other, &models(2)), Boarding::Lead(_)), "in another manner");
        drop(leader);
    }
}
