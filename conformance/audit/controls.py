"""Controls under the suite: right samplers, run after run with another seed; every FAIL is a false alarm."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from refsampler.backends.protocol import Subject
from refsampler.backends.registry import resolve
from refsampler.conformance.audit.catches import Watch
from refsampler.conformance.audit.plans import Planner
from refsampler.conformance.faults.controls import CONTROLS
from refsampler.conformance.runner import run
from refsampler.conformance.subject import OpenSubject
from refsampler.conformance.threads import one_thread
from refsampler.conformance.verdict import Status

__all__ = ["BACKENDS", "ControlRun", "ask_controls", "controls_of"]

BACKENDS: Final = ("native", "cpu", "transformers")
"""Real samplers, each under its own semantics; everything they draw is drawn."""
_BACKEND_RUNS: Final = 3
"""Of each of them."""


class ControlRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the suite on a right sampler.

    Attributes:
        control: in words, or the backend's name.
        run_seed: of the run.
        drawn: whether laws, tails and pairs were drawn; else every exact case was asked, and the
            draws of a control with the same law stand for them.
        failed: clauses reported FAIL.
        errors: of the harness, in words.
        cases: judged.
        draws: taken.
        seconds: spent.

    """

    control: str
    run_seed: int
    drawn: bool
    failed: tuple[str, ...]
    errors: tuple[str, ...]
    cases: int
    draws: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Control:
    """A right sampler, and whether its draws are made."""

    name: str
    make: Callable[[], Subject]
    drawn: bool


def controls_of(number: int) -> tuple[_Control, ...]:
    """Return the samplers of one run seed, the `number`th from 0.

    Controls whose declared semantics agree have the same exact law, so that the first of them draws
    for all.
    """
    backends = BACKENDS if number < _BACKEND_RUNS else ()
    return (
        *_in_process(CONTROLS),
        *(_Control(name, partial(resolve, name), drawn=True) for name in backends),
    )


def _in_process(makers: Mapping[str, Callable[[], Subject]]) -> tuple[_Control, ...]:
    laws = set()
    found = []
    for name, make in makers.items():
        law = make().capabilities.semantics
        found.append(_Control(name, make, drawn=law not in laws))
        laws.add(law)
    return tuple(found)


def ask_controls(
    number: int,
    run_seed: int,
    profile: str,
    *,
    skip: frozenset[str] = frozenset(),
    tell: Callable[[ControlRun], None] = lambda _run: None,
) -> tuple[ControlRun, ...]:
    """Run the suite once on every control, under one run seed.

    Args:
        number: of the run, from 0.
        run_seed: feeds cases and draws.
        profile: quick or full.
        skip: names of controls that were asked before.
        tell: told each run as it ends.

    """
    planner = Planner()
    found = []
    for control in controls_of(number):
        if control.name in skip:
            continue
        one = _ask(control, planner, run_seed, profile)
        tell(one)
        found.append(one)
    return tuple(found)


def _ask(control: _Control, planner: Planner, run_seed: int, profile: str) -> ControlRun:
    started = time.monotonic()
    subject = OpenSubject(control.make(), run_seed)
    make_plan = planner.whole if control.drawn else planner.exact
    with one_thread():
        plan = make_plan(subject.capabilities, profile, run_seed)
        outcome = run(subject, plan, Watch(), minimise=False)
    verdicts = [one.verdict for one in outcome.decisions]
    return ControlRun(
        control=control.name,
        run_seed=run_seed,
        drawn=control.drawn,
        failed=tuple(str(one.clause) for one in verdicts if one.status is Status.FAIL),
        errors=outcome.errors,
        cases=outcome.cases,
        draws=outcome.draws,
        seconds=round(time.monotonic() - started, 3),
    )
