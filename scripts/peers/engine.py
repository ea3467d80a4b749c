"""Our engine: `engy-miner bench engine`, with proofs."""
import json

from .common import ROOT, Figures, run

PROGRAM = ROOT / "target/release/engy-miner"


def measure(program, checkpoint, load, kv_cache_dtype):
    """One run. Its cache holds the requests of this batch and no more."""
    out = run(program, "bench", "engine", "--checkpoint", checkpoint, "--threads", load.threads, "--batch", load.batch,
              "--kv-cache-dtype", kv_cache_dtype, "--proofs", "on", "--repeats", 1,
              "--prompt-tokens", load.prompt, "--new-tokens", load.answer, "--json")
    line = json.loads(out)
    return Figures(*(line[field] for field in Figures._fields))
