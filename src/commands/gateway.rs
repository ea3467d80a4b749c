//! `engy-miner gateway`: a local gateway.

use std::process::ExitCode;

use super::interrupted;
use crate::cli::GatewayArgs;
use crate::gateway::{Gateway, GatewayConfig};

pub(super) async fn run(args: GatewayArgs) -> anyhow::Result<ExitCode> {
    let mut config = GatewayConfig::new(args.listen);
    config.legs = args.legs;
    config.miner_key = args.miner_key;
    let gateway = Gateway::bind(config).await?;
    tracing::info!(
        miners = gateway.ws_url(),
        buyers = format!("{}/v1", gateway.http_url()),
        legs = args.legs,
        "the gateway listens"
    );
    gateway.run(interrupted()).await?;
    Ok(ExitCode::SUCCESS)
}
