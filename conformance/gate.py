"""Gate: the runs of one pytest session, each made once, whichever process asks first.

Nothing here imports torch; a run does, when the first of its clauses is asked for.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from refsampler.conformance.results import NOT_SELECTED, ClauseResult, RunResult, properties
from refsampler.conformance.verdict import Status

__all__ = [
    "REPORTS",
    "ClauseCheck",
    "ClauseFailed",
    "ClauseInconclusive",
    "Gate",
    "RunFailed",
    "Wanted",
    "clause_names",
    "current_gate",
    "set_gate",
    "settle",
]

REPORTS = Path("reports") / "runs"
"""Where `refsampler replay` looks."""


class ClauseFailed(AssertionError):  # noqa: N818 - reads as what happened
    """A MUST is broken."""


class ClauseInconclusive(AssertionError):  # noqa: N818 - likewise
    """A MUST was not decided, or no backend conforms without declaring it."""


class RunFailed(RuntimeError):  # noqa: N818 - likewise
    """The backend could not be opened, or the harness broke: nothing is known about the clause."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A run that somebody asked for; equal ones are the same run.

    Attributes:
        backend: as `resolve` takes it, or a label of an object without a name.
        glob: shell pattern of clause ids.
        subject: the object, None to resolve the name.
        named: whether `resolve` finds it by `backend`.
        own_expectations: the session's file of expectations does not speak about it.

    """

    backend: str
    glob: str = "*"
    subject: Any = field(default=None, compare=False, hash=False)
    named: bool = True
    own_expectations: bool = False

    @property
    def folder(self) -> str:
        """Name of the report's folder: no two runs of a session write to the same."""
        parts = self.backend if self.glob == "*" else f"{self.backend} {self.glob}"
        parts += " in tests" if self.own_expectations else ""
        return re.sub(r"[^\w.-]+", "-", parts).strip("-.")


def clause_names(glob: str) -> tuple[str, ...]:
    """Return what a run with this glob decides, in the order of the contract."""
    from refsampler.clauses import select

    names = tuple(str(clause.id) for clause in select(glob))
    return names if glob == "*" or not names else (*names, NOT_SELECTED)


@dataclass(slots=True, eq=False)
class Gate:
    """The runs of a session.

    Attributes:
        run_seed: of all its runs.
        profile: quick or full.
        reports: folder in which each run gets a folder.
        shared: where processes of one session leave their results for each other; None alone.
        inconclusive: what a MUST that was not decided does.
        in_process: a named backend is asked in this process whatever it is.
        expectations: file of expected failures, for the runs that have no expectations of their own.

    """

    run_seed: int = field(default_factory=lambda: secrets.randbits(31))
    profile: str = "quick"
    reports: Path = REPORTS
    shared: Path | None = None
    inconclusive: Literal["fail", "skip"] = "fail"
    in_process: bool = False
    expectations: Path | None = None
    _results: dict[Wanted, RunResult] = field(default_factory=dict)
    _told: frozenset[Wanted] = frozenset()

    def result(self, wanted: Wanted) -> RunResult:
        """Return the result of a run, made now if nobody has."""
        if wanted not in self._results:
            self._results[wanted] = self._made(wanted)
        return self._results[wanted]

    def known(self, wanted: Wanted) -> RunResult | None:
        """Return the result if this process has it."""
        return self._results.get(wanted)

    def clause(self, wanted: Wanted, clause: str) -> ClauseResult:
        """Return what a run says about a clause.

        Raises:
            RunFailed: nothing; the message says why.

        """
        result = self.result(wanted)
        if result.failure:
            # In full once: a backend that cannot be opened would say so for every clause.
            told, self._told = wanted in self._told, self._told | {wanted}
            raise RunFailed(result.failure.partition("\n")[0] if told else result.failure)
        found = next((one for one in result.clauses if one.clause == clause), None)
        if found is None:
            raise RunFailed(f"the run says nothing about {clause}")
        if found.status is Status.ERROR:
            raise RunFailed(found.text)
        return found

    def _made(self, wanted: Wanted) -> RunResult:
        def make() -> RunResult:
            from refsampler.conformance.expectations import read_expectations
            from refsampler.conformance.gate_run import run_backend

            path = None if wanted.own_expectations else self.expectations
            return run_backend(
                wanted,
                self.profile,
                self.run_seed,
                self.reports / wanted.folder,
                in_process=self.in_process,
                known=() if path is None else read_expectations(path),
            )

        return make() if self.shared is None else _once(self.shared, wanted, self.run_seed, make)


def _once(shared: Path, wanted: Wanted, run_seed: int, make: Callable[[], RunResult]) -> RunResult:
    """Make a result in one process of several; the others wait for it.

    A process that dies takes its lock along and leaves the mark that it had started: the run is
    not repeated, since a second look at the same seeds would count evidence twice.
    """
    from filelock import FileLock

    key = hashlib.sha256(
        repr((wanted.backend, wanted.glob, wanted.own_expectations)).encode()
    ).hexdigest()[:16]
    done, started = shared / f"{key}.json", shared / f"{key}.started"
    with FileLock(shared / f"{key}.lock"):
        if done.exists():
            return msgspec.json.decode(done.read_bytes(), type=RunResult)
        if started.exists():
            failure = "the process that ran the checks ended without a result"
            return RunResult(backend=wanted.backend, run_seed=run_seed, failure=failure)
        started.touch()
        result = make()
        partial = done.with_suffix(".partial")
        partial.write_bytes(msgspec.json.encode(result))
        partial.replace(done)
        return result


_current: list[Gate] = []


def current_gate() -> Gate:
    """Return the gate of the running session; without the plugin, one with the defaults."""
    if not _current:
        _current.append(Gate())
    return _current[-1]


def set_gate(gate: Gate) -> Callable[[], None]:
    """Make a gate the current one; the function returned takes it back."""
    _current.append(gate)
    return lambda: _current.remove(gate)


def settle(one: ClauseResult, inconclusive: Literal["fail", "skip"]) -> None:
    """End a test as its clause ended.

    A SHOULD that is broken is shown as an expected failure, as those of the file: it does not gate.

    Raises:
        ClauseFailed: a MUST is broken.
        ClauseInconclusive: a MUST was not decided and `inconclusive` is fail.

    """
    __tracebackhide__ = True
    if one.status is Status.PASS:
        return
    if one.status is Status.FAIL:
        if one.expected:
            pytest.xfail(f"{one.expected}\n{one.text}")
        if one.must:
            raise ClauseFailed(one.text)
        pytest.xfail(f"a SHOULD, which does not gate\n{one.text}")
    undecided = one.must and one.status is Status.INCONCLUSIVE
    if (undecided or one.needed) and inconclusive == "fail":
        why = "" if undecided else "; no backend conforms without it"
        raise ClauseInconclusive(f"{one.text}{why}")
    pytest.skip(one.text)


@dataclass(frozen=True, slots=True)
class ClauseCheck:
    """A test of one clause: called without arguments, it ends as the clause ended."""

    wanted: Wanted
    clause: str

    def __call__(self) -> None:
        """Settle the clause, after the run if nobody asked for one before."""
        __tracebackhide__ = True
        gate = current_gate()
        settle(gate.clause(self.wanted, self.clause), gate.inconclusive)

    def properties(self) -> tuple[tuple[str, str], ...]:
        """Return the properties of the test; none before the run."""
        result = current_gate().known(self.wanted)
        clauses = () if result is None else result.clauses
        found = next((one for one in clauses if one.clause == self.clause), None)
        if result is None or found is None:
            return ()
        run = (("backend", result.backend), ("run_seed", str(result.run_seed)))
        return (*run, *properties(found))
