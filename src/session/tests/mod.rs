//! A worker between a gateway and a backend that do what the test says.
//!
//! The gateway's end is real websockets on a real port, or, where a test is about time, one websocket over a pipe on a
//! paused clock. A wait is always for an event: a frame, a start of a generation, its end.

mod answers;
mod bad_frames;
mod cancels;
mod denials;
mod endings;
mod errors;
mod hello;
mod load;
mod logprobs;
mod reconnects;
mod scripted_backend;
mod scripted_gateway;
mod site;
mod time_limits;
mod wire;
