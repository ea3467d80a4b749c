//! What a gateway is told before it starts.

use std::net::SocketAddr;
use std::time::Duration;

use crate::protocol::MinerKey;

/// Legs that a miner is told to dial: production runs this many gateway workers.
pub const DEFAULT_LEGS: usize = 8;

/// Most legs: miners clamp what `/meta` says to this.
pub const MAX_LEGS: usize = 64;

/// The longest that a request may take, waiting for a leg excluded: the deadline that miners advertise.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(1800);

/// How long a request waits for a free slot before its buyer is told 429: long enough to ride out a short burst, short
/// enough that the buyer can still go elsewhere.
pub const FREE_LEG_WAIT: Duration = Duration::from_secs(5);

/// How a gateway listens, whom it admits and how long it waits.
#[derive(Debug, Clone)]
pub struct GatewayConfig {
    /// Where to listen; port 0 takes any free one.
    pub listen: SocketAddr,
    /// Legs a miner dials, 1 to [`MAX_LEGS`]; what `/meta` answers.
    pub legs: usize,
    /// The key that a hello must carry. `None` admits any.
    pub miner_key: Option<MinerKey>,
    /// The longest that a request may take once it has a leg.
    pub request_timeout: Duration,
    /// The longest that a request waits while all legs of its model are full.
    pub free_leg_wait: Duration,
}

impl GatewayConfig {
    /// The defaults, listening on `listen`.
    #[must_use]
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            legs: DEFAULT_LEGS,
            miner_key: None,
            request_timeout: REQUEST_TIMEOUT,
            free_leg_wait: FREE_LEG_WAIT,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_config_does_not_show_its_key() {
        let mut config = GatewayConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)));
        config.miner_key = Some(MinerKey::new("mk-hidden"));
        assert!(!format!("{config:?}").contains("hidden"));
    }
}
