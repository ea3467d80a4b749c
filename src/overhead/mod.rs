//! What a proof costs, backend by backend: the measurement behind `engy-miner bench overhead`.
//!
//! In: prompts, and backends. Out: [`Cell`]s, one a backend, mode and load, and a report of them. What must never happen: modes
//! that are measured one after the other, figures of different work side by side, and an estimate without its interval.

mod answer;
mod comparison;
mod matrix;
mod process;
pub mod report;
mod results;
mod statistics;
mod turn;

pub use self::answer::{Answer, AnswerError};
pub use self::comparison::{Account, Comparison, Load, Mode, TurnRecord};
pub use self::matrix::{Made, judge, make};
pub use self::process::{Process, ProcessError, answer_requests};
pub use self::results::{
    BackendOverhead, Cell, Distribution, Estimate, Machine, Matrix, MatrixCell, Overhead, Processes, Proofs, Role, Run,
    Variant,
};
pub use self::statistics::median;
pub use self::turn::{Ask, COMPUTE_THREADS, CpuTimes, Turn, take};
