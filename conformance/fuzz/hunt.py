"""The hunt: fuzzing alone, no designed case and no corpus, against the bank of wrong samplers.

Hunted are the faults that the suite catches by exact or near-certain comparison on a CPU, as its kill
matrix has it; what only evidence over thousands of draws shows is not fuzzing's to find.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Final

import msgspec

from refsampler.conformance.audit.one import FaultResult
from refsampler.conformance.checks import Kind, all_checks
from refsampler.conformance.faults.base import Fault, Need
from refsampler.conformance.faults.registry import fault
from refsampler.conformance.fuzz.found import FoundBook
from refsampler.conformance.fuzz.loop import fuzz
from refsampler.conformance.isolation import Limits, guarded
from refsampler.conformance.records import ReportWriter
from refsampler.conformance.threads import one_thread

__all__ = [
    "Hunted",
    "by_kind",
    "hunt",
    "hunt_one",
    "markdown",
    "of_exact_checks",
    "read_matrix",
    "share",
]

_EXACT: Final = (Kind.EXACT, Kind.NEAR_CERTAIN)
_CALL_S: Final = 5.0
"""Seconds of one call of a fault that may hang."""


class Hunted(msgspec.Struct, frozen=True, kw_only=True):
    """What fuzzing made of one fault.

    `clause` is the one found first, empty if none was; `named` says that the fault's own clause is
    among its explanations.  `rows` and `vocab` are of the smallest case, if it was looked for.
    """

    id: str
    kind: str
    clause: str = ""
    check: str = ""
    named: bool = False
    seconds: float = 0.0
    batches: int = 0
    rows: int | None = None
    vocab: int | None = None
    errors: int = 0


def of_exact_checks(matrix: bytes) -> tuple[str, ...]:
    """Return the ids of faults that exact checks of the CPU caught in an audit (its JSON)."""
    kinds = {one.name: one.kind for one in all_checks()}
    document = msgspec.json.decode(matrix)
    results = msgspec.convert(document["results"], list[FaultResult])
    return tuple(
        one.id
        for one in results
        if one.first is not None and kinds.get(one.first.check) in _EXACT and _here(one.id)
    )


def _here(name: str) -> bool:
    try:
        found = fault(name)
    except LookupError:
        return False
    return found.make is not None and {*found.needs} == {Need.CPU}


def hunt(
    names: Sequence[str],
    seconds: float,
    run_seed: int,
    *,
    workers: int = 1,
    shrink_s: float = 0.0,
    tell: Callable[[Hunted], None] = lambda _one: None,
) -> tuple[Hunted, ...]:
    """Hunt every fault, each for so many seconds, on a core of its own."""
    found: dict[str, Hunted] = {}
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawn) as pool:
        asked = [pool.submit(hunt_one, name, seconds, run_seed, shrink_s) for name in names]
        for one in as_completed(asked):
            found[one.result().id] = one.result()
            tell(one.result())
    return tuple(found[name] for name in names)


def hunt_one(name: str, seconds: float, run_seed: int, shrink_s: float = 0.0) -> Hunted:
    """Fuzz one fault until something is found, or time is up."""
    wanted = fault(name)
    # in a process of its own only what may hang: every call would cost a message
    spec = f"refsampler.conformance.faults.subjects:{name}"
    limits = Limits(timeout_s=_CALL_S)
    with (
        one_thread(),
        guarded(spec, run_seed, isolate=wanted.hazardous, limits=limits) as subject,
    ):
        book = FoundBook(ReportWriter(None), subject, shrink_s=shrink_s)
        started = time.monotonic()
        done = fuzz(
            subject,
            run_seed,
            book,
            stop=lambda _done: bool(book.causes) or time.monotonic() - started >= seconds,
        )
    return _result(wanted, book, done.batches, done.seconds, len(done.errors))


def _result(wanted: Fault, book: FoundBook, batches: int, seconds: float, errors: int) -> Hunted:
    if not book.causes:
        return Hunted(
            id=wanted.id,
            kind=wanted.kind,
            seconds=round(seconds, 2),
            batches=batches,
            errors=errors,
        )
    everything = {
        clause
        for one in book.causes.values()
        for clause in (one.cause.clause, *one.finding.candidates)
    }
    first = next(iter(book.causes.values()))
    return Hunted(
        id=wanted.id,
        kind=wanted.kind,
        clause=first.cause.clause,
        check=first.check.name,
        named=bool(everything & {*wanted.clauses}),
        seconds=round(first.seconds, 2),
        batches=first.batch,
        rows=len(first.case.requests) if first.shrunk else None,
        vocab=first.case.logits.vocab if first.shrunk else None,
        errors=errors,
    )


def share(found: Sequence[Hunted]) -> float:
    """Return the share of the faults that were found."""
    return sum(bool(one.clause) for one in found) / max(1, len(found))


def by_kind(found: Sequence[Hunted]) -> Mapping[str, list[Hunted]]:
    """Return kind -> its faults."""
    kinds: dict[str, list[Hunted]] = {}
    for one in found:
        kinds.setdefault(one.kind, []).append(one)
    return kinds


def markdown(found: Sequence[Hunted], about: Mapping[str, str]) -> str:
    """Return the hunt as a page: what it was, the share of each kind, every fault."""
    return "\n".join([*_page(found, about), ""])


def _page(found: Sequence[Hunted], about: Mapping[str, str]) -> Iterator[str]:
    yield "# Faults that fuzzing alone finds"
    yield ""
    yield (
        f"{sum(bool(one.clause) for one in found)} of {len(found)} ({share(found):.0%}), designed"
        " cases and corpus off. Times are to the first finding, shrinking not counted."
    )
    yield ""
    yield from (f"* {name}: {words}" for name, words in about.items())
    yield ""
    yield "| kind | found | of | median seconds |"
    yield "| --- | --- | --- | --- |"
    for kind, those in by_kind(found).items():
        times = [one.seconds for one in those if one.clause]
        median = f"{statistics.median(times):.1f}" if times else ""
        yield f"| {kind} | {len(times)} | {len(those)} | {median} |"
    yield ""
    yield "| fault | kind | found as | named | seconds | batches | rows x V, shrunk |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for one in found:
        size = "" if one.rows is None else f"{one.rows} x {one.vocab}"
        named = ("yes" if one.named else "no") if one.clause else ""
        yield (
            f"| {one.id} | {one.kind} | {one.clause or '**missed**'} | {named} |"
            f" {one.seconds:.1f} | {one.batches} | {size} |"
        )


def read_matrix(path: Path) -> tuple[str, ...]:
    """Return the faults to be hunted, from the kill matrix of an audit."""
    return of_exact_checks(path.read_bytes())
