"""What an sglang serve's Python spends on a row of hidden states before a client sees it. Takes the row's WIDTH and how many ROWS.

An sglang serve turns each row into Python floats, sends it pickled from its scheduler to its detokenizer and on to its HTTP server, and
writes it as JSON by orjson. Here the same is done in one process. Prints one JSON object: microseconds a row of each step.
"""
import json
import pickle
import statistics
import sys
import time

import numpy
import orjson

RUNS = 7
# Between scheduler and detokenizer, and between detokenizer and HTTP server.
MESSAGES = 2


def timed(rows, work):
    """Microseconds a row, median of runs, and what the work gave."""
    times = []
    for _ in range(RUNS):
        started = time.perf_counter()
        done = work()
        times.append((time.perf_counter() - started) * 1e6 / rows)
    return statistics.median(times), done


def main():
    width, rows = int(sys.argv[1]), int(sys.argv[2])
    # As bf16 values are: f32 whose lower bits are zero.
    bits = numpy.random.default_rng(1).normal(0, 3, (rows, width)).astype(numpy.float32).view(numpy.uint32) & 0xFFFF0000
    tensor = bits.view(numpy.float32)
    to_list, values = timed(rows, tensor.tolist)
    dumps, text = timed(rows, lambda: pickle.dumps(values, protocol=pickle.HIGHEST_PROTOCOL))
    loads, values = timed(rows, lambda: pickle.loads(text))
    writes, body = timed(rows, lambda: orjson.dumps(values))
    steps = {"to_list": to_list, "pickle": MESSAGES * dumps, "unpickle": MESSAGES * loads, "json": writes}
    print(json.dumps({"width": width, "rows": rows, "bytes_per_row": len(body) / rows, "us_per_row": sum(steps.values()), **steps}))


if __name__ == "__main__":
    main()
