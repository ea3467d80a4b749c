"""candle's own loop over its `quantized_llama`: a small program of its own (candle_loop/), built for this processor."""
import re

from .common import CACHE, HERE, ROOT, PeerError, figures, run, say

CRATE = HERE / "candle_loop"
TARGET = CACHE / "candle_loop"


class Candle:
    name = "candle"

    def prepare(self):
        ours, theirs = locked(ROOT / "Cargo.lock"), locked(CRATE / "Cargo.lock")
        if ours != theirs:
            raise PeerError(f"{CRATE} is for candle {theirs}, the project has {ours}; change its Cargo.toml")
        if not (TARGET / "release/candle-loop").exists():
            say("building candle's loop (a few minutes) ...")
        run("nice", "cargo", "build", "--release", "--locked", cwd=CRATE,
            env={"CARGO_TARGET_DIR": str(TARGET), "RUSTFLAGS": "-C target-cpu=native"})

    def refusal(self, form, batch):
        if batch > 1:
            return "quantized_llama fails for several requests: its slice of the last tokens is not contiguous"
        return None

    def checkpoint(self, model, form):
        return model.gguf(form)

    def measure(self, model, form, load):
        return figures(run(TARGET / "release/candle-loop", model.gguf(form), load.prompt, load.answer,
                           env={"RAYON_NUM_THREADS": str(load.threads)}))


def locked(lockfile):
    """The version of candle in a Cargo.lock."""
    return re.search(r'name = "candle-core"\nversion = "([^"]+)"', lockfile.read_text()).group(1)
