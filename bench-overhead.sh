#!/usr/bin/env bash
# What a proof costs on this machine, from nothing: fetches the demo's model, builds the program, measures both backends, the
# hop over HTTP with a stand-in for the serve, and writes a report to target/overhead. Under ten minutes on two cores.
# Arguments go to `engy-miner bench overhead`, for example: ./bench-overhead.sh --seconds 600 --output my-figures
set -euo pipefail
cd "$(dirname "$0")"
model=$(scripts/fetch-demo-model)
cargo build --release --locked
# Those that the caller names win.
given=" $* "
[[ $given == *" --output"* ]] || set -- --output target/overhead "$@"
[[ $given == *" --seconds"* ]] || set -- --seconds 150 "$@"
exec target/release/engy-miner bench overhead --checkpoint "$model" --fake-serve "$@"
