"""Hugging Face transformers with PyTorch on the CPU."""
from . import pytorch
from .common import HERE, Venv, figures, run, say

# accelerate is asked for when a GGUF file is read; it would pull PyTorch's CUDA libraries.
TRANSFORMERS, ACCELERATE = ["transformers==5.24.0", "gguf==0.19.0", "numpy", "psutil"], "accelerate==1.15.0"

QUIET = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
DTYPES = {"F32": "f32", "BF16": "bf16"}


class Transformers:
    name = "transformers"

    def __init__(self):
        self.venv = Venv("transformers")

    def prepare(self):
        done = self.venv.folder / "complete"
        if not done.exists():
            say("fetching PyTorch and transformers (600 MB) ...")
            self.venv.create()
            self.venv.pip("install", "--no-deps", ACCELERATE)
            pytorch.install(self.venv, *TRANSFORMERS)
            run(self.venv.python, "-c", "import torch, transformers")
            done.touch()

    def refusal(self, form, batch):
        return None if form in DTYPES else "transformers computes in F32 and BF16 on the CPU"

    def checkpoint(self, model, form):
        """The model as a Hugging Face folder, which both sides read."""
        return model.made(f"{form}-folder", lambda folder: run(
            self.venv.python, "-P", HERE / "transformers_convert.py", model.path, folder, DTYPES[form], env=QUIET))

    def measure(self, model, form, load):
        return figures(run(self.venv.python, "-P", HERE / "transformers_bench.py", self.checkpoint(model, form), *load,
                           env={**QUIET, "OMP_NUM_THREADS": str(load.threads)}))
