//! Asking a gateway how many legs it wants.

use std::time::Duration;

use super::{DEFAULT_LEGS, MAX_LEGS};
use crate::protocol::{Meta, meta_url};

/// A gateway that restarts answers again within this.
const TRIES: usize = 3;
const BETWEEN: Duration = Duration::from_secs(1);
/// The answer is a few bytes.
const LONGEST_ANSWER: usize = 1 << 16;
const TIMEOUT: Duration = Duration::from_secs(5);

/// The number of legs that the gateway asks for; [`DEFAULT_LEGS`] where it does not answer, since a worker with fewer
/// legs than production has workers is refused at onboarding.
pub async fn legs(gateway: &str) -> usize {
    let url = meta_url(gateway);
    for attempt in 1..=TRIES {
        match ask(&url).await {
            Ok(Some(meta)) => return meta.workers.clamp(1, MAX_LEGS),
            Ok(None) => tracing::warn!(url, attempt, "the gateway's answer does not say how many legs it wants"),
            Err(error) => tracing::warn!(url, attempt, %error, "the gateway does not say how many legs it wants"),
        }
        if attempt < TRIES {
            tokio::time::sleep(BETWEEN).await;
        }
    }
    DEFAULT_LEGS
}

/// `None` where the answer is none.
async fn ask(url: &str) -> Result<Option<Meta>, reqwest::Error> {
    let client =
        reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).timeout(TIMEOUT).build()?;
    let mut response = client.get(url).send().await?.error_for_status()?;
    let mut body = Vec::new();
    while let Some(part) = response.chunk().await? {
        body.extend_from_slice(&part);
        if body.len() > LONGEST_ANSWER {
            return Ok(None);
        }
    }
    Ok(serde_json::from_slice(&body).ok())
}
