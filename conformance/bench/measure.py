"""Measurement: contestants by turns in one run, medians and spreads, beside the memory floor."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from refsampler.backends.protocol import Subject
from refsampler.conformance.bench.contestants import Contestant, Floor, contestant
from refsampler.conformance.bench.workload import Cache, Cell, Pool

__all__ = ["FLOOR", "Effort", "Measured", "measure"]

FLOOR = "memory floor"
"""Name of the row that only reads the logits."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long a cell is measured.

    Attributes:
        repeats: turns, if they fit.
        seconds: after which no new turn starts; three are always taken.

    """

    repeats: int = 15
    seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class Measured:
    """What one contestant took in one cell.

    Attributes:
        cell: what was measured.
        name: of the contestant.
        repeats: turns that were taken.
        row_us: microseconds a row, median over turns.
        best_us: of the fastest turn, which a busy machine disturbs least.
        low_us: lower quartile.
        high_us: upper quartile.
        tokens_per_s: ids a second of wall time.
        tokens_per_core_s: ids a second of processor time.
        of_floor: the floor's median over this one's; 1 is as fast as reading the logits.
        best_of_floor: likewise, of the fastest turns.

    """

    cell: Cell
    name: str
    repeats: int
    row_us: float
    best_us: float
    low_us: float
    high_us: float
    tokens_per_s: float
    tokens_per_core_s: float
    of_floor: float
    best_of_floor: float


@dataclass(frozen=True, slots=True)
class _Taken:
    """One turn: wall and processor seconds, and those of the reading that is to be taken off."""

    wall: float
    processor: float
    reading_wall: float = 0.0
    reading_processor: float = 0.0


_Turn = Callable[[], _Taken]


def measure(
    cell: Cell, subjects: Sequence[tuple[str, Subject]], floor: Floor, effort: Effort
) -> tuple[Measured, ...]:
    """Measure the floor and every backend, by turns, on windows that none of them saw lately.

    Args:
        cell: what to sample.
        subjects: names and backends.
        floor: what reads the logits.
        effort: how long.

    """
    device = subjects[0][1].capabilities.device if subjects else "cpu"
    pool = Pool(cell.rows, cell.batch, cell.vocab, device)
    with ExitStack() as open_ones:
        ready = [contestant(name, subject, cell) for name, subject in subjects]
        for one in ready:
            open_ones.enter_context(one.closing)
        turns = [
            _floor_turn(cell, pool, floor, device),
            *[_turn(cell, pool, floor, one, device) for one in ready],
        ]
        taken = _alternate(turns, effort)
    names = [FLOOR, *[one.name for one in ready]]
    floor_s = _seconds(taken[0])
    return tuple(
        _measured(cell, name, times, floor_s) for name, times in zip(names, taken, strict=True)
    )


def _alternate(turns: Sequence[_Turn], effort: Effort) -> list[list[_Taken]]:
    """Take turns; the first one of each is not counted, for it may compile."""
    for turn in turns:
        turn()
    taken: list[list[_Taken]] = [[] for _ in turns]
    started = time.monotonic()
    for count in range(effort.repeats):
        if count >= 3 and time.monotonic() - started > effort.seconds:
            break
        for turn, times in zip(turns, taken, strict=True):
            times.append(turn())
    return taken


def _calls(cell: Cell) -> int:
    """Return how many calls one turn times together."""
    return max(1, 64 // cell.batch)


def _timed(calls: Sequence[Callable[[], object]], device: str) -> tuple[float, float]:
    """Return wall and processor seconds of some calls together."""
    _wait_for(device)
    wall, processor = time.perf_counter(), time.process_time()
    for call in calls:
        call()
    _wait_for(device)
    return time.perf_counter() - wall, time.process_time() - processor


def _wait_for(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def _floor_turn(cell: Cell, pool: Pool, floor: Floor, device: str) -> _Turn:
    """Read windows once; from the cache, the second of two readings."""

    def turn() -> _Taken:
        windows = [pool.window() for _ in range(_calls(cell))]
        once = _timed([partial(floor.read, one) for one in windows], device)
        if cell.cache is Cache.DRAM:
            return _Taken(*once)
        windows = [pool.window() for _ in range(_calls(cell))]
        return _Taken(*_timed([partial(floor.read, one, 2) for one in windows], device), *once)

    return turn


def _turn(cell: Cell, pool: Pool, floor: Floor, one: Contestant, device: str) -> _Turn:
    """Sample windows; from the cache, right after they were read."""

    def turn() -> _Taken:
        windows = [pool.window() for _ in range(_calls(cell))]
        if cell.cache is Cache.DRAM:
            return _Taken(*_timed([partial(one.call, window) for window in windows], device))
        if one.reads_itself:
            others = [pool.window() for _ in range(_calls(cell))]
            reading = _timed([partial(floor.read, window) for window in others], device)
            both = _timed([partial(one.call, window) for window in windows], device)
            return _Taken(*both, *reading)
        wall, processor = 0.0, 0.0
        for window in windows:
            floor.read(window)
            more = _timed([partial(one.call, window)], device)
            wall, processor = wall + more[0], processor + more[1]
        return _Taken(wall, processor)

    return turn


def _seconds(times: Sequence[_Taken]) -> tuple[float, float]:
    """Return the seconds of a turn without the reading: by medians, and by the fastest turns."""
    wall, reading = ([one.wall for one in times], [one.reading_wall for one in times])
    return float(np.median(wall) - np.median(reading)), min(wall) - min(reading)


def _measured(
    cell: Cell, name: str, times: Sequence[_Taken], floor_s: tuple[float, float]
) -> Measured:
    rows = _calls(cell) * cell.batch
    median, best = _seconds(times)
    reading = float(np.median([one.reading_wall for one in times]))
    low, high = np.quantile([one.wall for one in times], [0.25, 0.75]) - reading
    processor = sum(one.processor - one.reading_processor for one in times) / len(times)
    return Measured(
        cell=cell,
        name=name,
        repeats=len(times),
        row_us=median / rows * 1e6,
        best_us=best / rows * 1e6,
        low_us=float(low) / rows * 1e6,
        high_us=float(high) / rows * 1e6,
        tokens_per_s=_over(rows, median),
        tokens_per_core_s=_over(rows, processor),
        of_floor=_over(floor_s[0], median),
        best_of_floor=_over(floor_s[1], best),
    )


def _over(count: float, seconds: float) -> float:
    """Divide; a time that noise made 0 or less has no rate."""
    return count / seconds if seconds > 0 else math.nan
