"""Examples: runs Hypothesis over a strategy of cases, for distinct ones or for the smallest that fails."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import hypothesis
import hypothesis.errors
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers

from refsampler.conformance.case import Case

__all__ = ["collect", "run_examples", "same_everywhere", "shrink"]

_ATTEMPTS = 8
"""Runs of Hypothesis until there are enough cases; it draws a few of them twice."""
_FEWEST = 16
"""Examples of a run; the first ones of every run are the same."""


_LOOKS_ROUND = "_get_local_constants"


@contextlib.contextmanager
def same_everywhere() -> Iterator[None]:
    """Keep Hypothesis from trying numbers that it reads in the source of imported modules.

    Which modules those are differs between `check` and `merge`, a checkout and an installed package:
    the same seed would give other cases.  Releases that do not look round are left alone.
    """
    looks_round = getattr(providers, _LOOKS_ROUND, None)
    if looks_round is None:
        yield
        return
    nothing = type(providers.GLOBAL_CONSTANTS)()
    providers.CONSTANTS_CACHE.cache.clear()
    setattr(providers, _LOOKS_ROUND, lambda: nothing)
    try:
        yield
    finally:
        setattr(providers, _LOOKS_ROUND, looks_round)
        providers.CONSTANTS_CACHE.cache.clear()


def collect(strategy: st.SearchStrategy[Case], count: int, run_seed: int) -> tuple[Case, ...]:
    """Return `count` distinct cases, the same for the same seed; judging comes afterwards."""
    found: dict[str, Case] = {}

    def keep(case: Case) -> None:
        if len(found) < count:
            found.setdefault(case.id, case)

    for attempt in range(_ATTEMPTS):
        if len(found) < count:
            wanted = max(count - len(found), _FEWEST)
            run_examples(
                strategy, keep, run_seed + attempt, wanted + wanted // 8, (Phase.generate,)
            )
    return tuple(found.values())


def run_examples(
    strategy: st.SearchStrategy[Case],
    body: Callable[[Case], None],
    run_seed: int,
    examples: int,
    phases: tuple[Phase, ...],
) -> None:
    """Run `body` on examples of a strategy, reproducibly and without a database.

    Args:
        strategy: of cases.
        body: is given each; an error of its ends the run as Hypothesis ends one.
        run_seed: the same one gives the same examples.
        examples: at most.
        phases: of Hypothesis.

    """

    @hypothesis.seed(run_seed)
    @hypothesis.settings(
        max_examples=examples,
        phases=phases,
        database=None,
        deadline=None,
        derandomize=False,
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        verbosity=hypothesis.Verbosity.quiet,
    )
    @hypothesis.given(strategy)
    def run(case: Case) -> None:
        body(case)

    with same_everywhere():
        run()


def shrink(
    strategy: st.SearchStrategy[Case],
    fails: Callable[[Case], bool],
    run_seed: int,
    examples: int,
    deadline: float,
    candidates: int = 200,
) -> Case | None:
    """Return a smaller case that `fails`, by exact oracles only; None if none was found again.

    The verdict stands whatever happens here: `fails` is asked once a case, and after `candidates`
    cases, or beyond the deadline of the monotonic clock, everything new passes: the search ends.
    """
    known: dict[str, bool] = {}
    smallest: list[Case] = []

    def body(case: Case) -> None:
        if case.id not in known:
            left = len(known) < examples + candidates and time.monotonic() < deadline
            known[case.id] = left and fails(case)
        if known[case.id]:
            smallest[:] = [case]
            raise AssertionError(case.id)

    with contextlib.suppress(AssertionError, hypothesis.errors.HypothesisException):
        run_examples(strategy, body, run_seed, examples, (Phase.generate, Phase.shrink))
    return smallest[0] if smallest else None
