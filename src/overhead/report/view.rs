//! The figures of a run, sorted by mode and load.

use crate::overhead::{Cell, Estimate, Matrix, Overhead, Proofs, Run};

/// All that a report is made from.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) run: &'a Run,
    pub(super) cells: &'a [Cell],
    pub(super) matrix: Option<&'a Matrix>,
}

/// Who computes an answer, and whether it is proven.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Mode<'a> {
    pub(super) backend: &'a str,
    pub(super) proofs: Proofs,
}

/// What is asked of a backend.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Load {
    pub(super) concurrency: usize,
    pub(super) new_tokens: usize,
    pub(super) streamed: bool,
}

impl Mode<'_> {
    /// Its name in tables and legends.
    pub(super) fn name(self) -> String {
        let proofs = if self.is_proven() { "proofs" } else { "no proofs" };
        format!("{}, {proofs}", self.backend)
    }

    pub(super) fn is_proven(self) -> bool {
        self.proofs != Proofs::Off
    }
}

impl Load {
    /// In words, such as `8 at once, 256 tokens`.
    pub(super) fn name(self) -> String {
        format!("{} at once, {}", self.concurrency, self.answers())
    }

    /// The same in a sentence: `8 requests at once, 256 tokens an answer`.
    pub(super) fn spelt(self) -> String {
        let requests = match self.concurrency {
            1 => "one request at a time".to_owned(),
            many => format!("{many} requests at once"),
        };
        format!("{requests}, {} tokens an answer{}", self.new_tokens, if self.streamed { "" } else { ", not streamed" })
    }

    /// The answers that are asked for.
    pub(super) fn answers(self) -> String {
        format!("{} tokens{}", self.new_tokens, if self.streamed { "" } else { ", not streamed" })
    }
}

impl Cell {
    pub(super) fn mode(&self) -> Mode<'_> {
        Mode { backend: &self.backend, proofs: self.proofs }
    }

    pub(super) fn load(&self) -> Load {
        Load { concurrency: self.concurrency, new_tokens: self.new_tokens, streamed: self.streamed }
    }
}

impl<'a> View<'a> {
    /// Backends, as they first come.
    pub(super) fn backends(&self) -> Vec<&'a str> {
        distinct(self.cells.iter().map(|cell| cell.backend.as_str()))
    }

    /// Modes, backend by backend, without proofs first.
    pub(super) fn modes(&self) -> Vec<Mode<'a>> {
        let found = distinct(self.cells.iter().map(Cell::mode));
        let of =
            |backend, proven| found.iter().copied().filter(move |m| m.backend == backend && m.is_proven() == proven);
        self.backends().into_iter().flat_map(|backend| of(backend, false).chain(of(backend, true))).collect()
    }

    /// Loads, the lightest first.
    pub(super) fn loads(&self) -> Vec<Load> {
        let mut loads = distinct(self.cells.iter().map(Cell::load));
        loads.sort_unstable();
        loads
    }

    pub(super) fn find(&self, mode: Mode<'_>, load: Load) -> Option<&'a Cell> {
        self.cells.iter().find(|cell| cell.mode() == mode && cell.load() == load)
    }

    /// Of the loads that are `wanted`, the one that most modes had; of equals the heaviest.
    pub(super) fn shared_load(&self, wanted: impl Fn(Load) -> bool) -> Option<Load> {
        let modes_at = |load| self.modes().into_iter().filter(|&mode| self.find(mode, load).is_some()).count();
        self.loads().into_iter().filter(|&load| wanted(load)).max_by_key(|&load| (modes_at(load), load))
    }

    /// The proven cells of a backend.
    pub(super) fn proven(&self, backend: &str) -> impl Iterator<Item = &'a Cell> {
        self.cells.iter().filter(move |cell| cell.backend == backend && cell.mode().is_proven())
    }

    /// What proofs cost a backend over all loads.
    pub(super) fn pooled(&self, backend: &str) -> Option<&'a Overhead> {
        self.run.overhead.iter().find(|of| of.backend == backend).map(|of| &of.overhead)
    }

    /// What proofs cost a backend, load by load, where that is known.
    pub(super) fn costs(&self, backend: &str) -> Vec<(&'a Cell, &'a Overhead)> {
        let known = |overhead: &&Overhead| overhead.time_pct.value.is_finite();
        self.proven(backend).filter_map(|cell| Some((cell, cell.overhead.as_ref().filter(known)?))).collect()
    }

    /// Whether an estimate lacks its interval.
    pub(super) fn lacks_intervals(&self) -> bool {
        let bare = |estimate: &Estimate| super::number::interval(estimate).is_none();
        let estimates = |overhead: &Overhead| {
            [overhead.time_pct, overhead.ttft_pct, overhead.cpu_us_per_token, overhead.fin_cpu_us_per_token]
        };
        let pooled = self.run.overhead.iter().map(|of| &of.overhead);
        let mut all = self.cells.iter().filter_map(|cell| cell.overhead.as_ref()).chain(pooled);
        all.any(|overhead| estimates(overhead).iter().any(bare))
    }
}

/// Each once, as they first come.
pub(super) fn distinct<T: PartialEq>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for value in values {
        if !found.contains(&value) {
            found.push(value);
        }
    }
    found
}
