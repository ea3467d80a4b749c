"""PyTorch on the CPU, in an environment of a peer's own.

PyPI's PyTorch for x86-64 Linux is built for CUDA. Only its own wheel is installed, without the gigabytes of CUDA libraries;
cuda_stand_in.py puts an empty library in their place, and what runs on the CPU is the same code (oneDNN, MKL).
"""
from . import cuda_stand_in

TORCH = "torch==2.15.0"
NEEDS = ["filelock", "fsspec", "jinja2", "networkx", "setuptools>=77.0.3", "sympy>=1.13.3", "typing-extensions>=4.13"]


def install(venv, *packages):
    """PyTorch, what it needs, and other packages that may need nothing else of it."""
    venv.pip("install", "--no-cache-dir", "--no-deps", TORCH)
    venv.pip("install", *NEEDS, *packages)
    cuda_stand_in.install(venv.site_packages() / "torch/lib")
