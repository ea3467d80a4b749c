"""Reads a reply's hidden states as Python clients of a serve do: json, then numpy. Takes the reply's FILE.

Prints `seconds peak_extra_bytes sum_of_bits`: the time from the body to rows of bf16, the most memory that this took beyond
the body's, and the sum of all values' bits.
"""
import json
import resource
import sys
import time

import numpy


def rows(body):
    """[rows, hidden], bf16 as its bits."""
    states = json.loads(body)["meta_info"]["hidden_states"]
    flat = [element[-1] if isinstance(element[0], list) else element for element in states]
    bits = numpy.asarray(flat, dtype=numpy.float32).view(numpy.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(numpy.uint16)


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main():
    with open(sys.argv[1], "rb") as file:
        body = file.read()
    before, started = peak(), time.perf_counter()
    read = rows(body)
    seconds = time.perf_counter() - started
    print(f"{seconds:.6f} {peak() - before} {read.sum(dtype=numpy.uint64)}")


if __name__ == "__main__":
    main()
