//! Routing and slots, without sockets.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::Utf8Bytes;
use tokio::sync::mpsc;

use super::{AdmittedLeg, Outgoing, Patience, Pool, Refusal};
use crate::gateway::tests::fake_miner::hello;
use crate::gateway::ticket::{Event, Ticket};
use crate::protocol::{GatewayFrame, Hello};

type Sent = mpsc::UnboundedReceiver<Outgoing>;

fn admit(pool: &Arc<Pool>, index: usize, model: &str, worker: &str, share: usize) -> (AdmittedLeg, Sent) {
    let (sender, sent) = mpsc::unbounded_channel();
    let hello: Hello = serde_json::from_value(hello(model, worker, share)).unwrap();
    (pool.admit(index, &hello, sender), sent)
}

fn dispatch(pool: &Arc<Pool>, model: &str) -> Result<Ticket, Refusal> {
    pool.try_dispatch(model, &pool.next_corr_id(), &Utf8Bytes::from_static("{}"))
}

fn inflight(pool: &Pool) -> Vec<usize> {
    pool.status().legs.iter().map(|leg| leg.inflight).collect()
}

#[test]
fn the_least_loaded_leg_by_share_takes_the_next_and_none_goes_over_its_share() {
    let pool = Pool::new();
    let _legs = (admit(&pool, 0, "m", "a", 1), admit(&pool, 1, "m", "a", 3));
    let mut tickets = Vec::new();
    for expected in [[1, 0], [1, 1], [1, 2], [1, 3]] {
        tickets.push(dispatch(&pool, "m").unwrap());
        assert_eq!(inflight(&pool), expected);
    }
    assert_eq!(dispatch(&pool, "m").unwrap_err(), Refusal::Full);
    drop(tickets);
    assert_eq!(inflight(&pool), [0, 0]);
}

#[test]
fn equals_take_turns() {
    let pool = Pool::new();
    let _legs: Vec<_> = (0..3).map(|index| admit(&pool, index, "m", "a", 2)).collect();
    let chosen: Vec<usize> = (0..6)
        .map(|_| {
            let ticket = dispatch(&pool, "m").unwrap();
            let at = inflight(&pool).iter().position(|count| *count == 1).unwrap();
            drop(ticket);
            at
        })
        .collect();
    assert_eq!(chosen, [0, 1, 2, 0, 1, 2]);
}

#[test]
fn refusals_say_what_is_served() {
    let pool = Pool::new();
    assert_eq!(dispatch(&pool, "m").unwrap_err(), Refusal::NoMiner);
    assert_eq!(pool.only_model(), Err(Refusal::NoMiner));
    let _b = admit(&pool, 0, "b", "1", 1);
    assert_eq!(pool.only_model(), Ok(Some("b".into())));
    let _a = admit(&pool, 0, "a", "2", 1);
    assert_eq!(pool.only_model(), Ok(None));
    let served = vec!["a".to_owned(), "b".to_owned()];
    assert_eq!(dispatch(&pool, "m").unwrap_err(), Refusal::UnknownModel(served));
}

#[test]
fn an_abandoned_request_is_cancelled_once_and_a_finished_one_is_not() {
    let pool = Pool::new();
    let (leg, mut sent) = admit(&pool, 0, "m", "a", 2);
    let abandoned = dispatch(&pool, "m").unwrap();
    let finished = dispatch(&pool, "m").unwrap();
    leg.last_event("c-2", Event::Unreadable("x".into()));
    assert_eq!(inflight(&pool), [1], "an answer frees its slot at once");
    drop((abandoned, finished));
    assert_eq!(inflight(&pool), [0]);
    let sent: Vec<Outgoing> = std::iter::from_fn(|| sent.try_recv().ok()).collect();
    assert!(
        matches!(
            &sent[..],
            [
                Outgoing::Frame(GatewayFrame::Admit),
                Outgoing::Serve(_),
                Outgoing::Serve(_),
                Outgoing::Frame(GatewayFrame::Cancel { corr_id }),
            ] if corr_id == "c-1"
        ),
        "{sent:?}"
    );
    leg.event("c-1", Event::Unreadable("late".into()));
    leg.last_event("c-1", Event::Unreadable("late".into()));
    assert_eq!(pool.status().unknown_corr_ids, 2);
}

#[test]
fn a_redial_takes_over_and_the_old_leg_closes_when_its_work_is_done() {
    let pool = Pool::new();
    let (_old, mut old_sent) = admit(&pool, 3, "m", "a", 4);
    let running = dispatch(&pool, "m").unwrap();
    let _other_worker = admit(&pool, 3, "x", "b", 4);
    let _new = admit(&pool, 3, "m", "a", 4);
    let _next = dispatch(&pool, "m").unwrap();
    assert_eq!(inflight(&pool), [1, 0, 1], "new work goes to the new leg");
    while let Ok(sent) = old_sent.try_recv() {
        assert!(!matches!(sent, Outgoing::Close), "work still runs on the old leg");
    }
    drop(running);
    assert!(matches!(old_sent.try_recv(), Ok(Outgoing::Frame(GatewayFrame::Cancel { .. }))));
    assert!(matches!(old_sent.try_recv(), Ok(Outgoing::Close)));
}

#[test]
fn heartbeats_merge() {
    let pool = Pool::new();
    let (leg, _sent) = admit(&pool, 0, "m", "a", 3);
    let beat = |value| leg.heartbeat(&serde_json::from_value(value).unwrap());
    beat(serde_json::json!({"inflight": 2, "idle_seconds": 0.0,
        "capacity": {"max_inflight": 5, "max_inflight_total": 40},
        "kv": {"used": 7, "reqs": 2, "waiting": 0, "pending": 0, "ranks": 1, "limit": 70, "frac": 0.1}}));
    beat(serde_json::json!({"inflight": 1, "idle_seconds": 0.0}));
    let status = &pool.status().legs[0];
    assert_eq!((status.reported_inflight, status.max_inflight), (Some(1), 5));
    assert_eq!(status.kv.unwrap().used, 7);
}

#[test]
fn a_leg_whose_socket_ended_is_passed_over() {
    let pool = Pool::new();
    let (_gone, sent) = admit(&pool, 0, "m", "a", 1);
    drop(sent);
    assert_eq!(dispatch(&pool, "m").unwrap_err(), Refusal::NoMiner);
}

const PATIENCE: Patience = Patience { for_leg: Duration::from_secs(5), for_answer: Duration::from_secs(60) };

#[tokio::test(start_paused = true)]
async fn a_full_pool_is_waited_for() {
    let pool = Pool::new();
    let _leg = admit(&pool, 0, "m", "a", 1);
    let first = dispatch(&pool, "m").unwrap();
    let serve = Utf8Bytes::from_static("{}");
    let refused = pool.dispatch("m", "c-9", &serve, PATIENCE).await.unwrap_err();
    assert_eq!(refused, Refusal::Full);
    let free_later = async {
        tokio::time::sleep(PATIENCE.for_leg / 2).await;
        drop(first);
    };
    let (second, ()) = tokio::join!(pool.dispatch("m", "c-10", &serve, PATIENCE), free_later);
    assert_eq!(second.unwrap().worker().worker_id, "a");
}

#[tokio::test(start_paused = true)]
async fn a_slot_is_freed_at_the_time_limit_though_nobody_listens() {
    let pool = Pool::new();
    let (_leg, mut sent) = admit(&pool, 0, "m", "a", 1);
    let serve = Utf8Bytes::from_static("{}");
    let mut ticket = pool.dispatch("m", "c-1", &serve, PATIENCE).await.unwrap();
    tokio::time::sleep(PATIENCE.for_answer + Duration::from_secs(1)).await;
    assert_eq!(inflight(&pool), [0]);
    assert!(matches!(sent.try_recv(), Ok(Outgoing::Frame(GatewayFrame::Admit))));
    assert!(matches!(sent.try_recv(), Ok(Outgoing::Serve(_))));
    assert!(matches!(sent.try_recv(), Ok(Outgoing::Frame(GatewayFrame::Cancel { .. }))));
    assert!(matches!(ticket.next().await, Some(Event::TimedOut)));
    assert!(ticket.next().await.is_none());
}
