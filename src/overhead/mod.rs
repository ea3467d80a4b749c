//! What a proof costs, backend by backend: the measurement behind `engy-miner bench overhead`.
//!
//! In: prompts, and backends. Out: [`Cell`]s, one a backend, mode and load, and a report of them. What must never happen: modes
//! that are measured one after the other, figures of different work side by side, and an estimate without its interval.
//!
//! `answer` reads one answer as a miner does, `turn` several at once, `comparison` orders turns, `process` has each backend take its
//! own in a process of its own; `figures` and `statistics` sum them up as `results`, which `report` shows. `matrix` has makers judged
//! by verifiers.

mod answer;
mod comparison;
mod figures;
mod matrix;
mod process;
pub mod report;
mod results;
mod statistics;
mod turn;

pub use self::answer::{Answer, AnswerError};
pub use self::comparison::{Account, Comparison, Load, Mode, TurnRecord};
pub use self::matrix::{Made, judge, make};
pub use self::process::{Process, ProcessError, answer_requests, die_with_parent};
pub use self::results::{
    BackendOverhead, Cell, Distribution, Estimate, Machine, Matrix, MatrixCell, Overhead, Processes, Proofs, Role, Run,
    Variant,
};
pub use self::statistics::median;
pub use self::turn::{Ask, COMPUTE_THREADS, CpuTimes, Turn, take};
