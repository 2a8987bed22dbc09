"""The cpu backend beside llama.cpp's `llama_sampler_apply` alone, by turns in one run.

Needs `pip install -e '.[cpu]' xllamacpp`.  The array of candidates that llama.cpp takes is written just
before and not timed; the rows of the cpu backend are read just before, never sampled before, and the
reading is taken off.  Temperature 0.8, one thread, medians.

    python reports/bench/llama_apply.py > reports/bench/llama.md
"""

from __future__ import annotations

import time

import numpy as np
import torch

from refsampler.backends.cpu import CpuKernel
from refsampler.backends.engines.llama_cpp import Library, candidates_of
from refsampler.conformance.bench.contestants import Floor, contestant
from refsampler.conformance.bench.workload import VOCABS, Cache, Cell, Pool, RowKind, parameters

MODES = ("k=50,p=.9", "k=50", "k=200,p=.9", "k=200", "p=.9", "T")
TURNS = 15
BATCH = 32
LLAMA_ROWS = 4


def apply_us(library: Library, chain: int, rows: np.ndarray) -> float:
    """Return microseconds a row of `llama_sampler_apply` on candidates that were just written."""
    spent = 0.0
    for row in rows:
        candidates = candidates_of(row)
        started = time.perf_counter()
        library.applied(chain, candidates)
        spent += time.perf_counter() - started
    return spent / len(rows) * 1e6


def cell_us(vocab: int, mode: str, kind: RowKind) -> tuple[float, float]:
    """Return medians over turns: the cpu backend, llama.cpp."""
    cell = Cell(batch=BATCH, vocab=vocab, mode=mode, rows=kind, cache=Cache.READ)
    pool, floor, ours = Pool(kind, BATCH, vocab, "cpu"), Floor("cpu"), CpuKernel()
    ready = contestant("cpu", ours, cell)
    library = Library()
    chain = library.chain(parameters(mode), vocab, 1)
    found: list[tuple[float, float, float]] = []
    for _ in range(TURNS):
        started = time.perf_counter()
        floor.read(pool.window())
        reading = time.perf_counter() - started
        started = time.perf_counter()
        ready.call(pool.window())
        both = time.perf_counter() - started
        found.append((both, reading, apply_us(library, chain, pool.window()[:LLAMA_ROWS].numpy())))
    library.free(chain)
    both, reading, llama = np.median(found[1:], axis=0)
    return float(both - reading) / BATCH * 1e6, float(llama)


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print("| V | mode | rows | cpu, us/row | llama_sampler_apply, us/row | ratio |")
    print("| --- | --- | --- | --- | --- | --- |")
    for vocab in VOCABS:
        for mode in MODES:
            for kind in (RowKind.PEAKED, RowKind.LLM, RowKind.FLAT):
                cpu, llama = cell_us(vocab, mode, kind)
                print(
                    f"| {vocab} | {mode} | {kind} | {cpu:.1f} | {llama:.1f} | {llama / cpu:.1f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
