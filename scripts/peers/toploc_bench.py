"""What a row costs toploc: FILE HIDDEN BATCH TOPK RUNS THREADS; 0 threads are as many as PyTorch takes by itself.

FILE holds rows of bf16. They are proven as the reference miner proves an answer: a list of rows, the prompt left out. Prints
`us_per_token sha256 threads`: the fastest run, and the hash of the proofs in base64, each with a line end.
"""
import hashlib
import sys
import time

import toploc
import torch


def main():
    file, (hidden, batch, topk, runs, threads) = sys.argv[1], map(int, sys.argv[2:])
    if threads:
        torch.set_num_threads(threads)
    with open(file, "rb") as opened:
        rows = list(torch.frombuffer(bytearray(opened.read()), dtype=torch.bfloat16).view(-1, hidden))
    fastest = float("inf")
    for _ in range(runs):
        started = time.perf_counter()
        proofs = toploc.build_proofs_base64(rows, decode_batching_size=batch, topk=topk, skip_prefill=True)
        fastest = min(fastest, time.perf_counter() - started)
    digest = hashlib.sha256("".join(proof + "\n" for proof in proofs).encode()).hexdigest()
    print(f"{fastest * 1e6 / len(rows):.3f} {digest} {torch.get_num_threads()}")


if __name__ == "__main__":
    main()
