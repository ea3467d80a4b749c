//! A serve that goes away takes the legs down, and brings them back.

use std::sync::Arc;

use engy_miner::backend::{Backend, Health};
use engy_miner::fake_serve::{Dialect, Fault};
use serde_json::json;

use super::{faults::service, open, seeded};
use crate::site::{LEGS, serve};

/// Time is the machine's here: health is asked each five seconds, and twice before a serve counts as back.
#[tokio::test(flavor = "multi_thread")]
async fn legs_are_down_while_the_serve_is() {
    let (fake, _) = seeded(Dialect::V0_5_6, 16, |_| ()).await;
    let backend = open(&[&fake], 16, |_| ()).await.unwrap();
    let (gateway, _worker, base) = serve(service(Arc::clone(&backend))).await;
    fake.inject(Fault::Unhealthy).await;
    gateway.wait_until(|status| status.open_legs() == 0).await;
    assert!(matches!(backend.health(), Health::Away(reason) if reason.contains("503")));
    fake.heal().await;
    gateway.wait_until(|status| status.open_legs() == LEGS).await;
    assert_eq!(backend.health(), Health::Ready);
    let request = json!({"model": "tiny", "messages": [{"role": "user", "content": "back?"}], "max_tokens": 5});
    let response =
        reqwest::Client::new().post(format!("{base}/v1/chat/completions")).json(&request).send().await.unwrap();
    assert_eq!(response.status(), 200);
}
