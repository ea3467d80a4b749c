//! A gateway on a real port, fake miners on real websockets, buyers on real HTTP.
//!
//! The tests play both sides in step: what a miner does next is written in the test, and a wait is always for an event.

mod answers;
mod big_messages;
mod failures;
pub(in crate::gateway) mod fake_miner;
mod hang_ups;
mod legs;
mod site;
mod time_limits;
