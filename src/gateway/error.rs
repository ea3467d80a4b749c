//! Why a gateway does not start or stops early.

use std::io;
use std::net::SocketAddr;

use super::config::MAX_LEGS;

/// An error of the gateway itself, as opposed to one that a buyer or a miner is told.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The address cannot be listened on.
    #[error("cannot listen on {addr}: {source}; {}", advice(source))]
    Listen {
        /// The address asked for.
        addr: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The number of legs makes no sense.
    #[error("{legs} legs: choose a number from 1 to {MAX_LEGS}, which is what miners dial")]
    Legs {
        /// The number asked for.
        legs: usize,
    },
    /// Accepting connections failed for good.
    #[error("the gateway on {addr} stopped accepting connections: {source}")]
    Serve {
        /// Where it listened.
        addr: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
}

/// What to do about an address that cannot be had.
fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::AddrInUse => "stop the program that holds it, or choose another port (0 takes any free one)",
        io::ErrorKind::AddrNotAvailable => "choose an address of this machine, such as 127.0.0.1",
        io::ErrorKind::PermissionDenied => "choose a port above 1023",
        _ => "choose another address",
    }
}
