#!/usr/bin/env bash
# Everything from nothing: fetches the demo's model, builds the program, asks one question and checks the answer's proof.
# Arguments go to `engy-miner demo`, for example: ./demo.sh "Name three rivers."
set -euo pipefail
cd "$(dirname "$0")"
scripts/fetch-demo-model >/dev/null
cargo build --release --locked
exec target/release/engy-miner demo "$@"
