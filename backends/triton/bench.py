"""Time the kernels on this GPU: ``python -m refsampler.backends.triton.bench`` prints a table.

FlashInfer, if it is installed, and `torch.topk` with a race are timed beside them.

Each figure is the median over CUDA-graph replays of the GPU time of one call, launch gaps included;
a graph holds calls on different inputs, more bytes than the L2 keeps.  The floor is the time to read
the logits once at the copy bandwidth that the same run measured.
"""

from __future__ import annotations

import importlib
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from refsampler.backends.protocol import Rows
from refsampler.backends.triton.kernel import TritonKernel

__all__ = ["VOCAB", "WORKLOADS", "Workload", "copy_bandwidth", "eager_us", "graph_us", "main"]

VOCAB = 128256
_L2_BYTES = 2**26
_Given = TypeVar("_Given")
_REPLAYS = 21


@dataclass(frozen=True, slots=True)
class Workload:
    """What is asked of every row; a list is dealt to the rows in turn.

    Attributes:
        name: as shown.
        k, p: filters; None is off for the batch.
        sizes: batches.
        logits: makes [rows, V] on the GPU.

    """

    name: str
    k: Sequence[int] | None = None
    p: Sequence[float] | None = None
    sizes: tuple[int, ...] = (1, 64, 512)
    logits: Callable[[int], Tensor] | None = None


def _bell(rows: int) -> Tensor:
    return torch.randn(rows, VOCAB, device="cuda")


def _scaled(sigma: float, rows: int) -> Tensor:
    return _bell(rows) * sigma


WORKLOADS = (
    Workload("k 50, p .9", [50], [0.9]),
    Workload("k 50", [50]),
    Workload("p .9", None, [0.9]),
    Workload("none"),
    *(Workload(f"k {k}", [k], sizes=(64, 512)) for k in (300, 500, 1000)),
    Workload("k 50, all equal", [50], sizes=(64, 512), logits=lambda n: _bell(n) * 0),
    Workload(
        "k 50, 16 % tied at the top", [50], sizes=(64, 512), logits=lambda n: _bell(n).clamp(max=1)
    ),
    Workload(
        "k 50, steps of .5", [50], sizes=(64, 512), logits=lambda n: (_bell(n) * 2).round() / 2
    ),
    *(Workload(f"p {p}", None, [p], sizes=(64, 512)) for p in (0.5, 0.3, 0.2, 0.1, 0.05)),
    Workload("half k 50, half none", [50, VOCAB], sizes=(64, 512)),
    Workload("half k 50, half p .9", [50, VOCAB], [1.0, 0.9], sizes=(64, 512)),
    Workload("all p .9 beside a k that is off", [VOCAB], [0.9], sizes=(64, 512)),
    *(
        Workload(f"{name}, sigma {sigma}", k, p, sizes=(64, 512), logits=partial(_scaled, sigma))
        for sigma in (4, 0.01)
        for name, k, p in (
            ("k 50, p .9", [50], [0.9]),
            ("k 50", [50], None),
            ("p .9", None, [0.9]),
            ("none", None, None),
        )
    ),
    Workload("k 50, p .9, bfloat16", [50], [0.9], logits=lambda n: _bell(n).bfloat16()),
    Workload("none, bfloat16", logits=lambda n: _bell(n).bfloat16()),
)


def _rows(work: Workload, size: int) -> Rows:
    def deal(values: Sequence[Any] | None, dtype: torch.dtype) -> Tensor | None:
        if values is None:
            return None
        dealt = [values[row % len(values)] for row in range(size)]
        return torch.tensor(dealt, dtype=dtype, device="cuda")

    generator = torch.Generator()
    return Rows(
        top_k=deal(work.k, torch.int32),
        top_p=deal(work.p, torch.float32),
        temperature=torch.ones(size, device="cuda"),
        min_p=None,
        seed=torch.arange(size, device="cuda"),
        step=torch.zeros(size, dtype=torch.int64, device="cuda"),
        seeded=torch.ones(size, dtype=torch.bool, device="cuda"),
        generators=dict.fromkeys(range(size), generator),
    )


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's is


def graph_us(call: Callable[[_Given], object], inputs: Sequence[_Given]) -> float:
    """Return the microseconds of one call inside a replayed graph of calls on all inputs."""
    call(inputs[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call(one) for one in inputs]
    times: list[float] = []
    for _ in range(_REPLAYS):
        start, end = _event(), _event()
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / len(kept))
    return statistics.median(times)


def eager_us(call: Callable[[], object], repeats: int = 50) -> float:
    """Return the microseconds of one call that Python launches, the GPU keeping up."""
    times = []
    for _ in range(9):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e6 / repeats)
    return statistics.median(times)


def _draw(kernel: TritonKernel, rows: Rows, logits: Tensor) -> object:
    return kernel.draw(logits, rows)


def _inputs(work: Workload, size: int) -> list[Tensor]:
    """Return as many logits as the L2 cannot keep."""
    one = (work.logits or _bell)(size)
    count = max(4, -(-2 * _L2_BYTES // (one.numel() * one.element_size())))
    return [one, *((work.logits or _bell)(size) for _ in range(count - 1))]


def copy_bandwidth() -> float:
    """Return bytes read and written a microsecond by a copy of 4 GiB."""
    source = torch.ones(2**30, device="cuda")
    target = torch.empty_like(source)
    times: list[float] = []
    for _ in range(_REPLAYS):
        start, end = _event(), _event()
        start.record()
        target.copy_(source)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return 2 * source.numel() * 4 / statistics.median(times)


def _torch_top_k(logits: Tensor, rows: Rows) -> Tensor:
    """Race over torch's top 50."""
    del rows
    best = logits.topk(50, dim=-1)
    noise = torch.empty_like(best.values).exponential_()
    winner = (best.values.softmax(dim=-1) / noise).argmax(dim=-1, keepdim=True)
    return best.indices.gather(-1, winner)


def _rivals() -> Mapping[str, tuple[str, Callable[[Tensor, Rows], Tensor]]]:
    """Return rivals that are installed: name -> (workload, call), called as vLLM does."""
    rivals: dict[str, tuple[str, Callable[[Tensor, Rows], Tensor]]] = {
        "k 50: torch.topk and race": ("k 50", _torch_top_k)
    }
    if importlib.util.find_spec("flashinfer") is None:
        return rivals
    call = importlib.import_module("flashinfer.sampling")
    name = f"FlashInfer {importlib.import_module('flashinfer').__version__}"
    return rivals | {
        f"k 50, p .9: {name}": (
            "k 50, p .9",
            lambda x, r: call.top_k_top_p_sampling_from_logits(x, r.top_k, r.top_p),
        ),
        f"k 50: {name}": (
            "k 50",
            lambda x, r: call.top_k_sampling_from_probs(x.softmax(-1), r.top_k),
        ),
        f"p .9: {name}": (
            "p .9",
            lambda x, r: call.top_p_sampling_from_probs(x.softmax(-1), r.top_p),
        ),
        f"none: {name}": ("none", lambda x, _: call.sampling_from_logits(x)),
    }


def _time_rivals() -> None:
    """Print the rivals' rows of the table."""
    works = {work.name: work for work in WORKLOADS}
    for name, (of, call) in _rivals().items():
        work = works[of]
        cells = []
        for size in work.sizes:
            rows = _rows(work, size)
            us = graph_us(partial(_called, call, rows), _inputs(work, size))
            cells.append(f"{us:.1f}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def _called(call: Callable[[Tensor, Rows], Tensor], rows: Rows, logits: Tensor) -> object:
    return call(logits, rows)


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table; with `rivals` only theirs."""
    import triton

    torch.manual_seed(0)
    kernel = TritonKernel("cuda")
    name = torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}, triton {triton.__version__}, V = {VOCAB}")
    bandwidth = copy_bandwidth()
    print(f"copy bandwidth {bandwidth / 1e6:.2f} TB/s, read and written\n")
    print("| µs | B=1 | 64 | 512 |\n| --- | --- | --- | --- |")
    floor = " | ".join(f"{size * VOCAB * 4 / bandwidth:.2f}" for size in (1, 64, 512))
    print(f"| floor: float32 logits read once | {floor} |")
    _time_rivals()
    if "rivals" in arguments:
        return
    for work in WORKLOADS:
        cells = {1: "", 64: "", 512: ""}
        for size in work.sizes:
            rows = _rows(work, size)
            us = graph_us(partial(_draw, kernel, rows), _inputs(work, size))
            cells[size] = f"{us:.1f}"
        print(f"| {work.name} | {' | '.join(cells.values())} |", flush=True)
    for work in WORKLOADS[:4]:
        rows, one = _rows(work, 1), _bell(1)
        us = eager_us(partial(_draw, kernel, rows, one))
        print(f"| {work.name}, called from Python | {us:.0f} | | |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
