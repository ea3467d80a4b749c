//! The serves that share the work.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::fault::Fault;
use super::serve::Serve;
use crate::backend::BackendError;

/// Before a call that a lone serve refused is sent to it again: a queue that was full has moved on.
const PAUSE_BEFORE_AGAIN: Duration = Duration::from_millis(500);

/// How often a call that waits for a serve looks whether that is still there.
const LOOK_WHILE_WAITING: Duration = Duration::from_secs(1);

/// Events a call in streams that repeat all rows in each: they then cost half as many times the rows themselves, and a buyer sees
/// the answer in so many pieces.
const EVENTS_OF_REPEATED_ROWS: usize = 8;

/// What a serve is like, as its probe found it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Traits {
    /// Its version knows seeds.
    pub(super) knows_seed: bool,
    /// Every event of its streams repeats all rows.
    pub(super) repeats_rows: bool,
    /// It returns a row for each token of the prompt.
    pub(super) returns_prompt: bool,
    /// It counts a prompt's tokens right, so that a smaller count is a prompt that was cut.
    pub(super) counts_prompts: bool,
}

impl Traits {
    /// Tokens between events, where the serve's own choice would repeat rows too often.
    pub(super) fn stream_interval(self, tokens: usize) -> Option<usize> {
        self.repeats_rows.then(|| tokens.div_ceil(EVENTS_OF_REPEATED_ROWS))
    }
}

/// The serves of one backend.
#[derive(Debug)]
pub(super) struct Pool {
    members: Vec<Arc<Member>>,
}

/// A serve and what is known of it.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) serve: Serve,
    number: usize,
    inflight: AtomicUsize,
    /// Rows that it may still hold, where that is bounded.
    rows: Option<Arc<Semaphore>>,
    most_rows: usize,
    state: Mutex<State>,
}

/// What health checks find.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct State {
    /// Why it gets no calls now.
    pub(super) away: Option<String>,
    pub(super) traits: Traits,
    /// What it works on, as it says, where it does.
    pub(super) load: Option<ServeLoad>,
    /// Tokens that its cache holds; known once it has told.
    pub(super) kv_limit: Option<usize>,
}

/// A serve's own account of its load, over all its ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ServeLoad {
    pub(super) running: usize,
    pub(super) waiting: usize,
    pub(super) tokens: usize,
    pub(super) pending: usize,
}

/// A call's place at a serve. Dropped, it is free again.
#[derive(Debug)]
pub(super) struct Lease {
    member: Arc<Member>,
    /// Given back when the call is over.
    rows: Option<OwnedSemaphorePermit>,
}

impl Pool {
    /// A pool of serves with their traits. `live_rows` bounds the rows of hidden states that each may hold for us.
    pub(super) fn new(serves: Vec<(Serve, Traits)>, live_rows: impl Fn(&Serve) -> Option<usize>) -> Self {
        let member = |(number, (serve, traits)): (usize, (Serve, Traits))| {
            let most_rows = live_rows(&serve).map(|rows| rows.clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize)));
            Arc::new(Member {
                rows: most_rows.map(|rows| Arc::new(Semaphore::new(rows))),
                most_rows: most_rows.unwrap_or(usize::MAX),
                serve,
                number,
                inflight: AtomicUsize::new(0),
                state: Mutex::new(State { traits, ..State::default() }),
            })
        };
        Self { members: serves.into_iter().enumerate().map(member).collect() }
    }

    pub(super) fn members(&self) -> &[Arc<Member>] {
        &self.members
    }

    pub(super) fn name(&self, number: usize) -> String {
        self.members.get(number).map(|member| member.serve.name()).unwrap_or_default()
    }

    /// A place for a call of `input` prompt tokens and `asked` new ones at the serve with the fewest calls; `except` is asked only
    /// if there is no other. Waits until the serve may hold as many rows more.
    pub(super) async fn lease(&self, input: usize, asked: usize, except: Option<usize>) -> Result<Lease, Fault> {
        loop {
            if let Some(lease) = Self::lease_at(self.choose(except)?, input, asked).await {
                return Ok(lease);
            }
        }
    }

    /// The serve with the fewest calls.
    fn choose(&self, except: Option<usize>) -> Result<Arc<Member>, Fault> {
        let here = || self.members.iter().filter(|member| member.state().away.is_none());
        let fewest = |members: &mut dyn Iterator<Item = &Arc<Member>>| {
            members.min_by_key(|member| member.inflight.load(Ordering::Relaxed)).cloned()
        };
        let others = fewest(&mut here().filter(|member| Some(member.number) != except));
        others.or_else(|| fewest(&mut here())).ok_or_else(|| {
            let reason = self.away().unwrap_or_else(|| "there is no serve".into());
            Fault { error: BackendError::Unavailable(reason), refused: true }
        })
    }

    /// A place at this serve, once it may hold the call's rows; `None` if it goes away before.
    async fn lease_at(member: Arc<Member>, input: usize, asked: usize) -> Option<Lease> {
        // Counted while it waits, so that the next call goes elsewhere.
        member.inflight.fetch_add(1, Ordering::Relaxed);
        let mut lease = Lease { member, rows: None };
        let Some(rows) = lease.member.rows.clone() else { return Some(lease) };
        let prompt = if lease.traits().returns_prompt { input } else { 1 };
        // One that is larger than all there is runs alone.
        let wanted = prompt.saturating_add(asked).min(lease.member.most_rows);
        let acquiring = rows.acquire_many_owned(u32::try_from(wanted).unwrap_or(u32::MAX));
        tokio::pin!(acquiring);
        loop {
            tokio::select! {
                biased;
                rows = &mut acquiring => {
                    // Never closed.
                    lease.rows = rows.ok();
                    return Some(lease);
                }
                // What runs at a serve that hangs gives its rows back late or never.
                () = tokio::time::sleep(LOOK_WHILE_WAITING) => {
                    if lease.member.state().away.is_some() {
                        return None;
                    }
                }
            }
        }
    }

    /// A place for a call that `refused` did not take: at another serve, or there after a pause.
    pub(super) async fn lease_again(&self, input: usize, asked: usize, refused: usize) -> Result<Lease, Fault> {
        let another = self.members.iter().any(|member| member.number != refused && member.state().away.is_none());
        if !another {
            tokio::time::sleep(PAUSE_BEFORE_AGAIN).await;
        }
        self.lease(input, asked, Some(refused)).await
    }

    /// Why no serve takes calls; `None` while one does.
    pub(super) fn away(&self) -> Option<String> {
        let reasons: Option<Vec<String>> = self
            .members
            .iter()
            .map(|member| member.state().away.clone().map(|why| format!("{}: {why}", member.serve.name())))
            .collect();
        reasons.map(|reasons| reasons.join("; "))
    }

    /// Calls that are under way.
    pub(super) fn inflight(&self) -> usize {
        self.members.iter().map(|member| member.inflight.load(Ordering::Relaxed)).sum()
    }
}

impl Member {
    /// Rows that it may hold for us at once; [`usize::MAX`] where that is not bounded.
    pub(super) fn most_rows(&self) -> usize {
        self.most_rows
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // Plain values: a panic while they were held leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lease {
    pub(super) fn serve(&self) -> &Serve {
        &self.member.serve
    }

    pub(super) fn traits(&self) -> Traits {
        self.member.state().traits
    }

    pub(super) fn number(&self) -> usize {
        self.member.number
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.member.inflight.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(count: usize, live_rows: Option<usize>) -> Pool {
        crate::tls::install();
        let serve = |port: usize| (Serve::new(&format!("http://127.0.0.1:{port}"), None).unwrap(), Traits::default());
        Pool::new((1..=count).map(serve).collect(), |_| live_rows)
    }

    #[tokio::test]
    async fn calls_go_where_the_fewest_are_and_not_where_nobody_is() {
        let pool = pool(3, None);
        let a = pool.lease(1, 1, None).await.unwrap();
        let b = pool.lease(1, 1, None).await.unwrap();
        let c = pool.lease(1, 1, None).await.unwrap();
        assert_eq!([a.number(), b.number(), c.number()], [0, 1, 2]);
        drop(b);
        assert_eq!(pool.lease(1, 1, None).await.unwrap().number(), 1);
        assert_eq!(
            pool.lease(1, 1, Some(1)).await.unwrap().number(),
            0,
            "the one that refused is the last to be asked"
        );
        pool.members()[1].state().away = Some("it is down".into());
        assert_eq!(pool.lease(1, 1, None).await.unwrap().number(), 0);
        assert_eq!(pool.away(), None);
        pool.members().iter().for_each(|member| member.state().away = Some("it is down".into()));
        let refusal = pool.lease(1, 1, None).await.unwrap_err();
        assert!(refusal.error.to_string().contains("127.0.0.1:2: it is down"), "{refusal:?}");
        drop((a, c));
        assert_eq!(pool.inflight(), 0);
    }

    #[tokio::test]
    async fn a_serve_holds_no_more_rows_than_it_may() {
        let pool = Arc::new(pool(1, Some(100)));
        let first = pool.lease(5000, 60, None).await.unwrap();
        let second = {
            let pool = Arc::clone(&pool);
            tokio::spawn(async move { pool.lease(5000, 60, None).await.unwrap().number() })
        };
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(!second.is_finished(), "61 rows more are too many");
        drop(first);
        assert_eq!(second.await.unwrap(), 0);
        assert_eq!(pool.lease(1, 1_000_000, None).await.unwrap().number(), 0, "one that is larger than all runs alone");
    }

    /// Its rows are held by calls that may never end.
    #[tokio::test(start_paused = true)]
    async fn a_call_that_waits_for_a_serve_which_goes_away_goes_elsewhere() {
        let pool = pool(2, Some(100));
        let (_a, _b) = (pool.lease(1, 90, None).await.unwrap(), pool.lease(1, 50, None).await.unwrap());
        let (waiting, ()) = tokio::join!(pool.lease(1, 90, None), async {
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert_eq!(pool.inflight(), 3);
            pool.members().iter().for_each(|member| member.state().away = Some("it hangs".into()));
        });
        assert!(waiting.unwrap_err().error.to_string().contains("it hangs"));
        pool.members()[1].state().away = None;
        assert_eq!(pool.lease(1, 40, None).await.unwrap().number(), 1);
        pool.members()[0].state().away = None;
        let (waiting, ()) = tokio::join!(pool.lease(1, 40, Some(1)), async {
            tokio::time::sleep(Duration::from_secs(60)).await;
            pool.members()[0].state().away = Some("it hangs".into());
        });
        assert_eq!(waiting.unwrap().number(), 1);
        assert_eq!(pool.inflight(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lone_serve_is_asked_again_after_a_pause() {
        let began = tokio::time::Instant::now();
        assert_eq!(pool(1, None).lease_again(1, 1, 0).await.unwrap().number(), 0);
        assert_eq!(began.elapsed(), PAUSE_BEFORE_AGAIN);
        assert_eq!(pool(2, None).lease_again(1, 1, 0).await.unwrap().number(), 1);
    }
}
