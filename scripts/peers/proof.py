"""Making proofs: ours (`engy-miner bench proof`) beside toploc, the library that the network's reference miner calls."""
import json
import pathlib
import statistics
import tempfile

from . import pytorch
from .common import HERE, PeerError, Venv, run, say
from .others import Others

TOPLOC = "toploc==0.1.6"
RUNS = 15


def prepare():
    """The environment that has toploc. Its wheel is of an older PyTorch and does not load with today's, so it is built."""
    venv = Venv("toploc")
    done = venv.folder / "complete"
    if not done.exists():
        say("fetching PyTorch (500 MB) and building toploc ...")
        venv.create()
        pytorch.install(venv)
        venv.pip("install", "--no-deps", "--no-build-isolation", "--no-binary", "toploc", TOPLOC)
        run(venv.python, "-c", "import toploc")
        done.touch()
    return venv


def compare(program, repeats):
    """One line for one core and, where PyTorch would take more by itself, one for that: medians of runs that took turns, on
    the same rows. Both must make the same proofs."""
    venv = prepare()
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "rows"
        run(program, "bench", "proof", "--write", file, "--runs", 1)
        bench = (program, "bench", "proof", "--input", file, "--runs", RUNS, "--json")
        shape = json.loads(run(*bench))

        def toploc(threads):
            out = run(venv.python, "-P", HERE / "toploc_bench.py", file, shape["hidden"], shape["batch"], shape["topk"], RUNS,
                      threads)
            us, proofs, used = out.split()
            if proofs != shape["proofs_sha256"]:
                raise PeerError("ours and toploc's proofs differ")
            return float(us), int(used)

        default = toploc(0)[1]
        for threads in sorted({1, default}):
            rounds, others = [], Others()
            for _ in range(repeats):
                ours = json.loads(run(*bench))
                if ours["proofs_sha256"] != shape["proofs_sha256"]:
                    raise PeerError("the same rows did not make the same proofs twice")
                rounds.append((ours["us_per_token"], toploc(threads)[0]))
            mine, theirs = map(statistics.median, zip(*rounds))
            yield {"peer": "toploc" if threads == 1 else f"toploc on {threads} threads", "what": "us_per_token",
                   "rows": shape["rows"], "ours": round(mine, 3), "theirs": round(theirs, 1),
                   "ratio": float(f"{mine / theirs:.3g}"), "others": round(others.share(), 2)}
