"""Reading hidden states from a serve's reply: ours (benches/hidden_states.rs) beside Python's json and numpy."""
import json
import pathlib
import statistics
import tempfile

from .common import HERE, ROOT, PeerError, Venv, run, say
from .others import Others

# The last that runs on Python 3.11.
NUMPY = "numpy==2.4.6"
BENCH = ("cargo", "bench", "--quiet", "--locked", "--bench", "hidden_states", "--")


def compare(repeats):
    """One line a figure: medians of runs that took turns, on the same bytes. Both must read the same values."""
    venv = Venv("json")
    done = venv.folder / "complete"
    if not done.exists():
        venv.create()
        venv.pip("install", NUMPY)
        done.touch()
    say("building the benchmark ...")
    with tempfile.TemporaryDirectory() as folder:
        body = pathlib.Path(folder) / "reply.json"
        run(*BENCH, "--write", body, cwd=ROOT)
        rounds, others = [], Others()
        for _ in range(repeats):
            ours = json.loads(run(*BENCH, "--json", cwd=ROOT))
            seconds, extra, bits = run(venv.python, "-P", HERE / "json_rows.py", body).split()
            if int(bits) != ours["sum_of_bits"]:
                raise PeerError("ours and Python's rows differ")
            size, rows = ours["bytes"], ours["rows"]
            rounds.append(((ours["mb_per_s"], ours["us_per_row"], ours["peak_extra_bytes"]),
                           (size / 1e6 / float(seconds), float(seconds) * 1e6 / rows, int(extra))))
    sides = [list(map(statistics.median, zip(*side))) for side in zip(*rounds)]
    for what, mine, theirs in zip(("mb_per_s", "us_per_row", "peak_extra_bytes"), *sides):
        yield {"peer": "json+numpy", "what": what, "rows": rows, "ours": round(mine, 1), "theirs": round(theirs, 1),
               "ratio": float(f"{mine / theirs:.3g}"), "others": round(others.share(), 2)}
