//! `engy-miner gateway`: a local gateway.

use std::process::ExitCode;

use anyhow::bail;

use super::interrupted;
use crate::cli::GatewayArgs;
use crate::gateway::{Gateway, GatewayConfig};
use crate::protocol::MinerKey;

pub(super) async fn run(args: GatewayArgs) -> anyhow::Result<ExitCode> {
    if args.miner_key.as_ref().is_some_and(MinerKey::is_blank) {
        bail!("MINER_KEY is empty, so no miner could show it: set it, or leave it unset to admit every miner");
    }
    let mut config = GatewayConfig::new(args.listen);
    config.legs = args.legs;
    config.miner_key = args.miner_key;
    let gateway = Gateway::bind(config).await?;
    tracing::info!(
        miners = gateway.ws_url(),
        buyers = format!("{}/v1", gateway.http_url()),
        legs = args.legs,
        "dial and ask here"
    );
    gateway.run(interrupted()).await?;
    Ok(ExitCode::SUCCESS)
}
