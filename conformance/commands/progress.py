"""Progress: a bar with the time left on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate

from refsampler.conformance.commands import Format
from refsampler.conformance.costs import expected_seconds
from refsampler.conformance.plan import Plan

__all__ = ["progress", "seconds_left"]


def seconds_left(done: float, total: float, elapsed: float, time_budget: float | None) -> float:
    """Return the seconds left, from expected seconds done and in all and what they took.

    Args:
        done: expected seconds of the finished cases, above 0.
        total: expected seconds of all cases.
        elapsed: seconds that the finished ones took.
        time_budget: of the run, None without.

    """
    left = (total - done) * elapsed / done
    return left if time_budget is None else max(0.0, min(left, time_budget - elapsed))


@contextmanager
def progress(
    form: Format, plan: Plan, time_budget: float | None
) -> Iterator[Callable[[int, int], None]]:
    """Give what the runner tells how many cases of how many are done."""
    if form != "pretty" or not sys.stderr.isatty():
        yield lambda _done, _planned: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    spent = tuple(accumulate(expected_seconds(plan)))
    started = time.monotonic()
    columns = (
        TextColumn("{task.fields[cases]} cases"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[left]} left"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=spent[-1] if spent else 1.0, cases="0", left="?")

        def tell(done: int, planned: int) -> None:
            at = spent[min(done, len(spent)) - 1]
            left = seconds_left(at, spent[-1], time.monotonic() - started, time_budget)
            words = f"{int(left) // 60}:{int(left) % 60:02d}"
            bar.update(task, completed=at, cases=f"{done}/{planned}", left=words)

        yield tell
