//! What a proof costs, backend by backend: the measurement behind `engy-miner bench overhead`.
//!
//! In: prompts, and backends. Out: [`Cell`]s, one a backend, mode and load, and a report of them. What must never happen: modes
//! that are measured one after the other, figures of different work side by side, and an estimate without its interval.

pub mod report;
mod results;

pub use self::results::{
    Cell, Distribution, Estimate, Machine, Matrix, MatrixCell, Overhead, Processes, Proofs, Run, Variant,
};
