//! Serves that are started anew while a miner runs.

use std::time::Duration;

use engy_miner::backend::{Backend, Health};
use engy_miner::fake_serve::{Dialect, HiddenStatesFlag};

use super::{answer, greedy, open, seeded};

/// Time is the machine's here: health is asked each five seconds, and twice before a serve counts as back.
#[tokio::test(flavor = "multi_thread")]
async fn a_serve_is_looked_at_again_before_it_takes_part_again() {
    let (a, model) = seeded(Dialect::V0_5_6, 16, |_| ()).await;
    let (b, _) = seeded(Dialect::V0_5_6, 16, |_| ()).await;
    let listen = b.addr();
    b.shut_down().await;
    // One that is not there yet keeps no other from working.
    let backend = open(&[&a, &b], 16, |_| ()).await.unwrap();
    assert_eq!(backend.health(), Health::Ready);
    let ask = async |n: u32| {
        let got = answer(&backend, greedy(&[1, 2, n], 4, false)).await.unwrap();
        assert_eq!(got.ids, model.greedy(&[1, 2, n], 4));
    };
    ask(3).await;
    let (b, _) = seeded(Dialect::V0_5_6, 16, |config| config.listen = listen).await;
    b.wait_until(|status| status.generates().filter(|call| call.end.is_some()).count() == 2).await;
    while b.status().generates().count() == 2 {
        futures::future::join_all((0..4).map(ask)).await;
    }
    b.shut_down().await;
    // Serves take longer than this to load a model.
    tokio::time::sleep(Duration::from_secs(7)).await;
    // It comes back with the flag forgotten, and is well for all that it says.
    let (b, _) = seeded(Dialect::V0_5_6, 16, |config| {
        (config.listen, config.hidden_states) = (listen, HiddenStatesFlag::Off);
    })
    .await;
    b.wait_until(|status| status.generates().next().is_some_and(|call| call.end.is_some())).await;
    futures::future::join_all((0..8).map(ask)).await;
    let asked_by_us =
        b.status().generates().filter(|call| call.body["input_ids"] != serde_json::json!([1, 2, 3, 4, 5])).count();
    assert_eq!(asked_by_us, 0, "nothing but the probe's question");
    assert_eq!(backend.health(), Health::Ready);
}
