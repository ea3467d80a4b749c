"""What all peers share: where things are kept, how programs are run, what a run gives."""
import os
import pathlib
import subprocess
import sys
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HERE = pathlib.Path(__file__).resolve().parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "engy-miner" / "peers"
# No run or build takes longer unless something is stuck.
LIMIT_S = 3600


class Load(NamedTuple):
    """What one run has to do."""

    threads: int
    batch: int
    prompt: int
    answer: int


class Figures(NamedTuple):
    """What one run measured."""

    prefill_tok_s: float
    decode_tok_s: float
    peak_rss_bytes: float


class PeerError(Exception):
    """A peer could not be built or did not run."""


def run(*command, env=None, **more):
    """The standard output of a program; an error that says what the program said."""
    command = [str(c) for c in command]
    try:
        done = subprocess.run(command, text=True, capture_output=True, timeout=LIMIT_S,
                              env={**os.environ, **(env or {})}, **more)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerError(f"{command[0]}: {error}") from error
    if done.returncode:
        said = (done.stderr + done.stdout).strip().splitlines()[-8:]
        raise PeerError("\n  ".join([f"{command[0]} ended with {done.returncode}:", *said]))
    return done.stdout


def figures(text):
    """A run's figures from the one line that each benchmark program prints."""
    return Figures(*map(float, text.split()))


def say(text):
    print(text, file=sys.stderr, flush=True)


class Venv:
    """A virtual environment of its own for a peer's packages."""

    def __init__(self, name):
        self.folder = CACHE / name
        self.python = self.folder / "bin/python"

    def create(self):
        CACHE.mkdir(parents=True, exist_ok=True)
        run(sys.executable, "-m", "venv", "--clear", self.folder)

    def pip(self, *arguments):
        run(self.python, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments)

    def site_packages(self):
        return next(self.folder.glob("lib/python3*/site-packages"))
