//! Asking a gateway how many legs it wants.

use std::time::Duration;

use super::{DEFAULT_LEGS, MAX_LEGS};
use crate::protocol::{Meta, meta_url};

/// A gateway that restarts answers again within this.
const TRIES: usize = 3;
const BETWEEN: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(5);

/// The number of legs that the gateway asks for; [`DEFAULT_LEGS`] where it does not answer, since a worker with fewer
/// legs than production has workers is refused at onboarding.
pub async fn legs(gateway: &str) -> usize {
    let url = meta_url(gateway);
    for attempt in 1..=TRIES {
        match ask(&url).await {
            Ok(meta) => return meta.workers.clamp(1, MAX_LEGS),
            Err(error) => tracing::warn!(url, attempt, %error, "the gateway does not say how many legs it wants"),
        }
        if attempt < TRIES {
            tokio::time::sleep(BETWEEN).await;
        }
    }
    DEFAULT_LEGS
}

async fn ask(url: &str) -> Result<Meta, reqwest::Error> {
    let client = reqwest::Client::builder().no_proxy().timeout(TIMEOUT).build()?;
    client.get(url).send().await?.error_for_status()?.json().await
}
