//! A stand-in for an sglang serve: for tests, for measurements, and for trying `--backend sglang` without a GPU.
//!
//! In: HTTP as clients of sglang send it. Out: what a version of sglang would answer, with tokens and rows from a made-up
//! model ([`Seeded`]) or from any [`Backend`](crate::backend::Backend), and with [faults](Fault) on request. What must never
//! happen here: that it is taken for a real serve (`/get_server_info` says what it is), or that the client's own code is
//! used, which would make both wrong in the same way.
//!
//! ```text
//! wire ──▶ server ──▶ generate ──▶ request    JSON to what is asked, or a refusal in the version's form
//!             │           ├──────▶ run        the queue, the engine, the end; faults of time and tokens
//!             │           ├──────▶ layout     rows to the elements of hidden_states; faults of rows
//!             │           ├──────▶ reply      the keys around them, by dialect
//!             │           └──────▶ writer     text as fast as the client reads; faults of bytes
//!             └─────▶ control                 health, load, aborts, what it is
//! ```

mod calls;
mod config;
mod control;
mod dialect;
mod engine;
mod fault;
mod generate;
mod handle;
mod layout;
mod refusal;
mod reply;
mod request;
mod row;
mod run;
mod script;
mod seeded;
mod server;
#[cfg(test)]
mod tests;
mod wire;
mod writer;

pub use self::calls::{Call, CallEnd, ServeStatus};
pub use self::config::{AbortMatch, FakeServeConfig, HiddenStatesFlag, Layout, Pace, PromptBlock};
pub use self::dialect::{Dialect, UnknownDialect};
pub use self::engine::{Engine, TextOf};
pub use self::fault::{ErrorForm, Fault, RandomFaults, Scope};
pub use self::handle::FakeServeHandle;
pub use self::script::ScriptedReply;
pub use self::seeded::Seeded;
pub use self::server::FakeServe;
