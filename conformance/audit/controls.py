"""Controls under the suite: right samplers, run after run with another seed; every FAIL is a false alarm."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from importlib.util import find_spec
from typing import Final

import msgspec

from refsampler.backends.protocol import Subject
from refsampler.backends.registry import EXTRAS
from refsampler.conformance.audit.catches import Watch
from refsampler.conformance.audit.plans import Planner
from refsampler.conformance.audit.simulated import OwnLaws, SimulatedSubject, simulated_plan
from refsampler.conformance.faults.controls import CONTROLS
from refsampler.conformance.isolation import AskedSubject, guarded
from refsampler.conformance.plan import Plan
from refsampler.conformance.revision import revision
from refsampler.conformance.runner import run
from refsampler.conformance.subject import OpenSubject
from refsampler.conformance.threads import one_thread
from refsampler.conformance.verdict import Status

__all__ = [
    "BACKENDS",
    "BY_TURNS",
    "DRAWN_RUNS",
    "Bench",
    "Control",
    "ControlRun",
    "ask_controls",
    "controls_of",
    "lacking",
]

BACKENDS: Final = ("native", "cpu", "transformers")
"""Real samplers, each under its own semantics; everything they draw is drawn."""
DRAWN_RUNS: Final = 3
"""Of each backend; and first runs of each control, in which nothing is simulated."""
BY_TURNS: Final = ("noise-ends", "seeds-repeated-wide")
"""Checks whose two dozen calls of 2^21 logits take half of the time of all exact ones; after the
first runs they are asked of one control a seed."""


class ControlRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the suite on a right sampler.

    Attributes:
        control: in words, or the backend's name.
        run_seed: of the run.
        drawn: whether the control itself drew laws, tails and pairs; else they were simulated.
        left_out: checks that were not asked.
        failed: clauses reported FAIL.
        errors: of the harness, in words.
        cases: judged.
        draws: taken, with those that were simulated.
        simulated: of them.
        seconds: spent.
        revision: of the suite.

    """

    control: str
    run_seed: int
    drawn: bool
    left_out: tuple[str, ...]
    failed: tuple[str, ...]
    errors: tuple[str, ...]
    cases: int
    draws: int
    simulated: int
    seconds: float
    revision: str


@dataclass(frozen=True, slots=True)
class Control:
    """A right sampler, and how much is asked of it in one run.

    Attributes:
        name: in words, or that of a backend.
        make: makes it, a right kernel if its draws are simulated; None opens the backend.
        drawn: whether it draws laws, tails and pairs itself.
        left_out: checks that are not asked.

    """

    name: str
    make: Callable[[], Subject] | None
    drawn: bool
    left_out: tuple[str, ...] = ()


class Bench:
    """What is made once for all runs of a process."""

    def __init__(self) -> None:
        self.planner = Planner()
        self.laws = OwnLaws()


def lacking(backend: str) -> tuple[str, ...]:
    """Return the packages that a backend needs and that are not installed."""
    needed = (package for package, extra in EXTRAS.items() if extra == backend)
    return tuple(one for one in needed if find_spec(one) is None)


def controls_of(number: int, glob: str = "*") -> tuple[Control, ...]:
    """Return the samplers of one run seed, the `number`th from 0, whose names match.

    After the first runs laws, tails and pairs of the controls are simulated, and the checks of
    `BY_TURNS` left to one of them.
    """
    drawn = number < DRAWN_RUNS
    kernels = [
        Control(name, make, drawn, () if drawn or number % len(CONTROLS) == place else BY_TURNS)
        for place, (name, make) in enumerate(CONTROLS.items())
    ]
    backends = [Control(one, None, drawn=True) for one in BACKENDS if drawn and not lacking(one)]
    return tuple(one for one in (*kernels, *backends) if fnmatchcase(one.name, glob))


def ask_controls(
    controls: tuple[Control, ...],
    run_seed: int,
    profile: str,
    *,
    bench: Bench | None = None,
    tell: Callable[[ControlRun], None] = lambda _run: None,
) -> tuple[ControlRun, ...]:
    """Run the suite once on every control, under one run seed.

    Args:
        controls: which, and how much is asked of them.
        run_seed: feeds cases and draws.
        profile: quick or full.
        bench: keeps plans and laws from call to call; one is made if none is given.
        tell: told each run as it ends.

    """
    kept = Bench() if bench is None else bench
    found = []
    for control in controls:
        one = _ask(control, kept, run_seed, profile)
        tell(one)
        found.append(one)
    return tuple(found)


@contextmanager
def _opened(
    control: Control, bench: Bench, run_seed: int, profile: str
) -> Iterator[tuple[AskedSubject, Plan]]:
    """Open a control, and plan its run."""
    if control.make is None:
        with guarded(control.name, run_seed) as backend:
            yield backend, bench.planner.whole(backend.capabilities, profile, run_seed)
        return
    kernel = control.make()
    whole = bench.planner.whole(kernel.capabilities, profile, run_seed)
    cases = tuple(one for one in whole.cases if one.check.name not in control.left_out)
    plan = replace(whole, cases=cases)
    if control.drawn:
        yield OpenSubject(kernel, run_seed), plan
        return
    subject = SimulatedSubject(control.name, kernel, plan, run_seed, bench.laws)
    yield subject, simulated_plan(plan)


def _ask(control: Control, bench: Bench, run_seed: int, profile: str) -> ControlRun:
    started = time.monotonic()
    with one_thread(), _opened(control, bench, run_seed, profile) as (subject, plan):
        outcome = run(subject, plan, Watch(), minimise=False)
    verdicts = [one.verdict for one in outcome.decisions]
    return ControlRun(
        control=control.name,
        run_seed=run_seed,
        drawn=control.drawn,
        left_out=control.left_out,
        failed=tuple(str(one.clause) for one in verdicts if one.status is Status.FAIL),
        errors=outcome.errors,
        cases=outcome.cases,
        draws=outcome.draws,
        simulated=subject.simulated if isinstance(subject, SimulatedSubject) else 0,
        seconds=round(time.monotonic() - started, 3),
        revision=revision(),
    )
