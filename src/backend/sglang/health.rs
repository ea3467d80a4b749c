//! Whether a serve is well, from what it answers and when.
//!
//! A serve that is busy with a long prompt answers `/health` late, sometimes for half a minute, and is well; one whose scheduler
//! hangs answers it at once and is not. So two signals are needed of each: a serve is gone when it is refused, or silent on both
//! endpoints; and it hangs when it says that it works and its count of tokens stands still.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::advice;
use super::pool::{Member, ServeLoad};
use super::probe::{Expected, kv_limit, probe};
use super::serve::Answer;

/// How often serves are asked.
const INTERVAL: Duration = Duration::from_secs(5);
/// How long `/health` may take.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(8);
/// How long the load may take, which is asked beside it.
const LOAD_TIMEOUT: Duration = Duration::from_secs(8);
/// A serve that is late on `/health` and alive on its load is taken for busy for so long: stalls of 72 s are on record, and a buyer's
/// deadline is further away.
const LATE_FOR: Duration = Duration::from_secs(120);
/// Late so many times with no load either: it is gone.
const SILENT_TIMES: u32 = 2;
/// A gone serve is back after so many good answers.
const GOOD_TIMES: u32 = 2;
/// A serve that works and gives no token for so long hangs: hangs of hours are on record, and no prompt takes as long.
const STANDSTILL: Duration = Duration::from_secs(300);
/// After it came up, a serve may compile kernels for so long.
const WARM_UP: Duration = Duration::from_secs(900);

/// What a serve answered when it was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Signs {
    pub(super) health: HealthSign,
    /// Its load, where it told.
    pub(super) load: Option<ServeLoad>,
}

/// The answer of `/health`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HealthSign {
    Good,
    /// No answer in time.
    Late,
    /// Refused, or with another status.
    Bad(String),
}

/// Judges a serve from its signs.
#[derive(Debug)]
pub(super) struct Judge {
    /// Since when it is up, as far as is known.
    up_since: Instant,
    away: Option<String>,
    late_since: Option<Instant>,
    silent: u32,
    good: u32,
    /// The load that was seen last, and since when its tokens have not changed.
    last: Option<(ServeLoad, Instant)>,
}

impl Judge {
    /// For a serve that is away for this reason, or well.
    pub(super) fn new(now: Instant, away: Option<String>) -> Self {
        Self { up_since: now, away, late_since: None, silent: 0, good: 0, last: None }
    }

    /// Takes signs; why the serve is away, or `None` if it is well.
    pub(super) fn judge(&mut self, signs: &Signs, now: Instant) -> Option<&str> {
        let standstill = self.standstill(signs.load, now);
        let fault = match &signs.health {
            HealthSign::Bad(why) => {
                // What it worked on is gone with it.
                self.last = None;
                Some(why.clone())
            }
            HealthSign::Late => {
                let since = *self.late_since.get_or_insert(now);
                self.silent = if signs.load.is_none() { self.silent + 1 } else { 0 };
                if self.silent >= SILENT_TIMES {
                    Some("it answers neither /health nor its load".to_owned())
                } else {
                    let late = now.duration_since(since) >= LATE_FOR;
                    late.then(|| format!("it has not answered /health for {} s", LATE_FOR.as_secs()))
                }
            }
            HealthSign::Good => {
                (self.late_since, self.silent) = (None, 0);
                None
            }
        };
        match fault.or(standstill) {
            Some(why) => {
                self.good = 0;
                self.away = Some(why);
            }
            None if signs.health == HealthSign::Good && self.away.is_some() => {
                self.good += 1;
                if self.good >= GOOD_TIMES {
                    self.away = None;
                    self.up_since = now;
                }
            }
            // Late, and no worse: it is not back.
            None => self.good = 0,
        }
        self.away.as_deref()
    }

    fn standstill(&mut self, load: Option<ServeLoad>, now: Instant) -> Option<String> {
        let (load, since) = match (self.last, load) {
            // Idle is no standstill, and neither is a count that moves, whichever way.
            (Some((last, since)), Some(load)) if load.running > 0 && last.running > 0 && last.tokens == load.tokens => {
                (load, since)
            }
            (_, Some(load)) => (load, now),
            // The scheduler answers it, and one that hangs does not.
            (Some(known), None) => known,
            (None, None) => return None,
        };
        self.last = Some((load, since));
        let hangs =
            load.running > 0 && now.duration_since(since) >= STANDSTILL && now.duration_since(self.up_since) >= WARM_UP;
        hangs.then(|| {
            format!(
                "it hangs: {} requests run and no token came for {} s; restart it",
                load.running,
                STANDSTILL.as_secs()
            )
        })
    }
}

/// What a serve must be when it comes back: as it was found at the start.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) expected: Expected,
    /// The context that requests are admitted by.
    pub(super) context: usize,
}

impl Wanted {
    /// Looks at a serve that was away: it may have been started anew, with other flags or another model. Why it cannot be used.
    async fn look(&self, member: &Member) -> Option<String> {
        let context = self.context;
        let probed = probe(&member.serve, &self.expected).await;
        if let Some(fault) = probed.fault() {
            return Some(format!("it is back and cannot be used: {}{}", fault.what, advice(fault)));
        }
        if let Some(served) = probed.context.filter(|served| *served < context) {
            return Some(format!(
                "it is back with a context of {served} tokens, and {context} are announced: restart the miner"
            ));
        }
        let mut state = member.state();
        state.traits = probed.traits;
        state.kv_limit = probed.kv_limit.or(state.kv_limit);
        None
    }
}

/// Asks a serve for ever, and keeps what is known of it up to date.
pub(super) async fn watch(member: Arc<Member>, wanted: Arc<Wanted>) {
    let was_away = member.state().away.clone();
    let mut judge = Judge::new(Instant::now(), was_away);
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let serve = &member.serve;
        let (health, load) = tokio::join!(
            serve.ask("health", HEALTH_TIMEOUT),
            serve.ask_either(&["get_load", "v1/loads"], LOAD_TIMEOUT)
        );
        let health = match health {
            Answer::Ok(_) => HealthSign::Good,
            Answer::Timeout => HealthSign::Late,
            Answer::Status(status) => HealthSign::Bad(format!("/health answers {}", status.as_u16())),
            Answer::Unreachable(why) => HealthSign::Bad(format!("it cannot be reached: {why}")),
        };
        let signs = Signs { health, load: load.ok().as_ref().and_then(read_load) };
        let mut away = judge.judge(&signs, Instant::now()).map(str::to_owned);
        let before = member.state().away.clone();
        if away.is_none() && before.is_some() {
            away = wanted.look(&member).await;
            if let Some(why) = away.as_ref().filter(|_| away != before) {
                tracing::error!(serve = serve.name(), why, "a serve is still away");
            }
        }
        let known = {
            let mut state = member.state();
            match (&state.away, &away) {
                (None, Some(why)) => tracing::error!(serve = serve.name(), why, "a serve is away"),
                (Some(_), None) => tracing::info!(serve = serve.name(), "a serve is back"),
                _ => {}
            }
            state.away = away;
            state.load = signs.load;
            state.kv_limit.is_some()
        };
        // A serve that still loads tells no limit: it is asked until it does.
        if !known && signs.load.is_some() {
            let info = serve.server_info(LOAD_TIMEOUT).await;
            member.state().kv_limit = info.as_ref().and_then(kv_limit);
        }
    }
}

/// The account of a serve's load, in the forms of all versions: a list of ranks with requests in all or with those that run,
/// such a list under a name, one rank, or nothing but a number of tokens.
pub(super) fn read_load(answer: &Value) -> Option<ServeLoad> {
    let ranks = match answer {
        Value::Array(ranks) => ranks.as_slice(),
        Value::Object(fields) => match (fields.get("loads"), fields.get("load").and_then(Value::as_u64)) {
            (Some(Value::Array(ranks)), _) => ranks.as_slice(),
            (_, Some(tokens)) => {
                let tokens = usize::try_from(tokens).unwrap_or(usize::MAX);
                return Some(ServeLoad { running: usize::from(tokens > 0), tokens, ..ServeLoad::default() });
            }
            _ => std::slice::from_ref(answer),
        },
        _ => return None,
    };
    let sum = |keys: [&str; 2]| {
        let number = |rank: &Value| keys.iter().find_map(|key| rank.get(key)?.as_u64());
        let numbers = ranks.iter().filter_map(number);
        usize::try_from(numbers.fold(0_u64, u64::saturating_add)).unwrap_or(usize::MAX)
    };
    let waiting = sum(["num_waiting_reqs"; 2]);
    let tokens = sum(["num_tokens", "num_used_tokens"]);
    let pending = sum(["num_pending_tokens"; 2]);
    let running = match ranks.iter().any(|rank| rank.get("num_running_reqs").is_some()) {
        true => sum(["num_running_reqs"; 2]),
        // Requests in all, those that wait included.
        false => sum(["num_reqs"; 2]).saturating_sub(waiting),
    };
    Some(ServeLoad { running, waiting, tokens, pending })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(running: usize, tokens: usize) -> Option<ServeLoad> {
        Some(ServeLoad { running, tokens, ..ServeLoad::default() })
    }

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_refusal_is_the_end_at_once_and_two_good_answers_the_return() {
        let start = Instant::now();
        let mut judge = Judge::new(start, None);
        let good = Signs { health: HealthSign::Good, load: load(0, 0) };
        let bad = Signs { health: HealthSign::Bad("/health answers 503".into()), load: None };
        assert_eq!(judge.judge(&good, start), None);
        assert_eq!(judge.judge(&bad, at(start, 5)), Some("/health answers 503"));
        assert!(judge.judge(&good, at(start, 10)).is_some());
        assert!(judge.judge(&bad, at(start, 15)).is_some());
        assert!(judge.judge(&good, at(start, 20)).is_some(), "good answers count from the last bad one");
        let late = Signs { health: HealthSign::Late, load: load(0, 0) };
        assert!(judge.judge(&late, at(start, 25)).is_some());
        assert!(judge.judge(&good, at(start, 30)).is_some(), "and from the last late one");
        assert_eq!(judge.judge(&good, at(start, 35)), None);
        assert!(
            Judge::new(start, Some("down".into())).judge(&good, start).is_some(),
            "one that begins away has to come back"
        );
    }

    #[test]
    fn a_late_serve_is_busy_while_its_load_lives_and_gone_without() {
        let start = Instant::now();
        let late = |load| Signs { health: HealthSign::Late, load };
        let mut judge = Judge::new(start, None);
        assert_eq!(judge.judge(&late(None), start), None, "once may be chance");
        assert!(judge.judge(&late(None), at(start, 13)).is_some());
        // Alive on its load for two minutes.
        let mut judge = Judge::new(start, None);
        for second in (0..120).step_by(10) {
            assert_eq!(judge.judge(&late(load(3, second as usize)), at(start, second)), None, "at {second} s");
        }
        assert!(judge.judge(&late(load(3, 999)), at(start, 120)).unwrap().contains("120 s"));
        // A good answer between starts the two minutes anew.
        let mut judge = Judge::new(start, None);
        judge.judge(&late(load(3, 1)), start);
        judge.judge(&Signs { health: HealthSign::Good, load: load(3, 2) }, at(start, 60));
        assert_eq!(judge.judge(&late(load(3, 3)), at(start, 130)), None);
    }

    #[test]
    fn a_serve_that_works_and_gives_no_token_hangs_but_not_while_it_warms_up_or_idles() {
        let start = Instant::now();
        let good = |load| Signs { health: HealthSign::Good, load };
        let mut judge = Judge::new(start, None);
        for second in (0..900).step_by(5) {
            assert_eq!(judge.judge(&good(load(2, 77)), at(start, second)), None, "warming up at {second} s");
        }
        assert!(judge.judge(&good(load(2, 77)), at(start, 900)).unwrap().contains("hangs"));
        // It gives tokens again, twice.
        assert!(judge.judge(&good(load(2, 78)), at(start, 905)).is_some());
        assert_eq!(judge.judge(&good(load(2, 79)), at(start, 910)), None);
        // Its scheduler hangs and answers nothing, while its web server is well.
        let mut judge = Judge::new(start, None);
        judge.judge(&good(load(2, 77)), at(start, 900));
        assert_eq!(judge.judge(&good(None), at(start, 1199)), None);
        assert!(judge.judge(&good(None), at(start, 1200)).unwrap().contains("hangs"));
        // Started anew, it has forgotten what it worked on.
        judge.judge(&Signs { health: HealthSign::Bad("refused".into()), load: None }, at(start, 1205));
        judge.judge(&good(None), at(start, 1210));
        assert_eq!(judge.judge(&good(None), at(start, 1215)), None);
        // Idle for hours.
        let mut judge = Judge::new(start, None);
        for second in (0..7200).step_by(300) {
            assert_eq!(judge.judge(&good(load(0, 0)), at(start, second)), None);
        }
        assert_eq!(judge.judge(&good(None), at(start, 7199)), None, "and then silent");
        // Five minutes between two tokens are allowed, and more are not.
        judge.judge(&good(load(1, 5)), at(start, 7200));
        assert_eq!(judge.judge(&good(load(1, 5)), at(start, 7499)), None);
        assert!(judge.judge(&good(load(1, 5)), at(start, 7500)).is_some());
    }

    #[test]
    fn loads_of_all_ranks_add_up() {
        let answer = serde_json::json!([
            {"dp_rank": 0, "num_reqs": 3, "num_waiting_reqs": 1, "num_tokens": 100},
            {"dp_rank": 1, "num_reqs": 2, "num_waiting_reqs": 0, "num_tokens": 50, "num_pending_tokens": 7}
        ]);
        assert_eq!(read_load(&answer), Some(ServeLoad { running: 4, waiting: 1, tokens: 150, pending: 7 }));
        assert_eq!(read_load(&answer[0]).map(|load| load.tokens), Some(100));
        let newest = serde_json::json!({"version": "0.5.23", "loads": [
            {"dp_rank": 0, "num_running_reqs": 2, "num_waiting_reqs": 1, "num_used_tokens": 90, "num_total_tokens": 95}]});
        assert_eq!(read_load(&newest), Some(ServeLoad { running: 2, waiting: 1, tokens: 90, pending: 0 }));
        let oldest = serde_json::json!({"load": 70});
        assert_eq!(read_load(&oldest), Some(ServeLoad { running: 1, waiting: 0, tokens: 70, pending: 0 }));
        assert_eq!(read_load(&Value::Null), None);
    }
}
