"""Prompt and answer speed of transformers on the CPU: FOLDER THREADS REQUESTS PROMPT ANSWER.

Prints `prefill_tok_s decode_tok_s peak_rss_bytes`: prompt tokens over the time until the first answer tokens are chosen, and
the other answer tokens over the time after, greedy, with the key/value cache, as `engy-miner bench engine` counts them.
"""
import sys
import time

import torch
from transformers import AutoModelForCausalLM, DynamicCache


def run(model, prompts, answer):
    """Seconds of the prompts and of the steps after, all requests in one batch."""
    cache = DynamicCache(config=model.config)
    started = time.perf_counter()
    out = model(input_ids=prompts, cache=cache, logits_to_keep=1)
    tokens = out.logits[:, -1].argmax(-1, keepdim=True)
    prefilled = time.perf_counter()
    for _ in range(answer - 1):
        out = model(input_ids=tokens, cache=cache)
        tokens = out.logits[:, -1].argmax(-1, keepdim=True)
    return prefilled - started, time.perf_counter() - prefilled


def peak_rss():
    """The most memory that this process ever held."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))


def main():
    folder, (threads, requests, prompt, answer) = sys.argv[1], map(int, sys.argv[2:])
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
    prompts = torch.randint(100, model.config.vocab_size, (requests, prompt))
    with torch.inference_mode():
        # The first round is short and only wakes threads and caches.
        run(model, prompts[:, :8], 4)
        prefill, decode = run(model, prompts, answer)
    print(f"{requests * prompt / prefill:.2f} {requests * (answer - 1) / decode:.2f} {peak_rss()}")


if __name__ == "__main__":
    main()
