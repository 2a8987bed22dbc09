"""Fault: a wrong subject, the clause that it breaks, and where it was seen in public."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import torch

from refsampler.backends.protocol import Subject
from refsampler.clauses import ClauseId, get
from refsampler.conformance.memory import memory_short

__all__ = ["Fault", "Kind", "Need", "Shelf", "State", "missing_here"]

_THREAD = re.compile(r"[\w.-]+/[\w.-]+#\d+")
_Maker = TypeVar("_Maker", bound=Callable[[], Subject])


class Kind(StrEnum):
    """What sort of mistake; each has a module of that name."""

    SUPPORT_LEAKS = "support-leaks"
    GARBAGE_IDS = "garbage-ids"
    FILTER_BOUNDARIES = "filter-boundaries"
    ORDER = "order"
    TEMPERATURE = "temperature"
    PENALTY_HISTORY = "penalty-history"
    ROW_MIXING = "row-mixing"
    SEEDS = "seeds"
    FROZEN_NOISE = "frozen-noise"
    PRECISION = "precision"
    LOGPROBS = "logprobs"
    CONSTRAINTS = "constraints"
    SPECULATIVE = "speculative"
    LARGE_TENSORS = "large-tensors"
    RACES = "races"
    COST = "cost"
    IGNORED_PARAMETERS = "ignored-parameters"
    LAWS = "laws"
    NUMBER_FORMATS = "number-formats"
    TAILS = "tails"
    DEPENDENCE = "dependence"

    @property
    def module(self) -> str:
        """Name of its module."""
        return self.value.replace("-", "_")


class Need(StrEnum):
    """What has to be there for the fault to show."""

    CPU = "cpu"
    GPU = "gpu"
    THREADS = "threads"
    PROCESSES = "two-processes"
    GRAPH = "graph-replay"
    MEMORY = "large-memory"


class State(StrEnum):
    """Whether the suite can be asked about it."""

    READY = "ready"
    OUT_OF_SCOPE = "out-of-scope"


@dataclass(frozen=True, slots=True)
class Fault:
    """One mistake that a real sampler made.

    Attributes:
        id: never used for another one.
        kind: of mistake.
        engine: that had it.
        thread: where it was reported or repaired, `owner/repo#number`; empty for a fault of the
            parametric bank, which nobody reported.
        clauses: the one that it breaks, then those whose name is as good.
        summary: what goes wrong, in words.
        make: returns the wrong subject; None if it cannot be asked about.
        needs: what has to be there.
        state: whether the suite can be asked.
        reason: why not.
        hazardous: it may crash or hang, so it is asked in a process of its own.
        bank: names, with wildcards, of the bets on this very fault: declared alternatives of laws,
            factors of tails, couplings of pairs.
        designed: checks whose cases were made for faults of its sort.
        index_elements: where its element index ends, in place of 2^31: the suite then asks
            `input.large` at that size, which an ordinary machine holds.

    Raises:
        ValueError: a field is out of range; the message names it.

    """

    id: str
    kind: Kind
    engine: str
    thread: str
    clauses: tuple[ClauseId, ...]
    summary: str
    make: Callable[[], Subject] | None = None
    needs: tuple[Need, ...] = (Need.CPU,)
    state: State = State.READY
    reason: str = ""
    hazardous: bool = False
    index_elements: int | None = None
    bank: tuple[str, ...] = ()
    designed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what could not be looked up or run."""
        for clause in self.clauses:
            get(clause)
        if self.thread and not _THREAD.fullmatch(self.thread):
            raise ValueError(f"{self.id}: thread = {self.thread!r} is refused: owner/repo#number")
        if not self.summary:
            raise ValueError(f"{self.id}: summary is empty: say what goes wrong")
        ready = self.state is State.READY
        if ready != (self.make is not None) or ready == bool(self.reason):
            raise ValueError(f"{self.id}: make belongs to what is ready, reason to what is not")
        if not self.clauses and self.state is not State.OUT_OF_SCOPE:
            raise ValueError(f"{self.id}: clauses is empty: name the clause that it breaks")


class Shelf:
    """The faults of one kind, in the order of their module.

    Used as a decorator of the wrong subject, whose docstring is the summary.

    Args:
        kind: of all of them.

    """

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self._faults: list[Fault] = []

    @property
    def faults(self) -> tuple[Fault, ...]:
        """What was put here so far."""
        return tuple(self._faults)

    def fault(
        self,
        id: str,  # noqa: A002 - what it is
        engine: str,
        thread: str,
        *clauses: str,
        needs: tuple[Need, ...] = (Need.CPU,),
        hazardous: bool = False,
        index_elements: int | None = None,
        bank: tuple[str, ...] = (),
        designed: tuple[str, ...] = (),
    ) -> Callable[[_Maker], _Maker]:
        """Put a wrong subject, or a function that makes one, on the shelf."""

        def put(maker: _Maker) -> _Maker:
            self._faults.append(
                Fault(
                    id=id,
                    kind=self.kind,
                    engine=engine,
                    thread=thread,
                    clauses=tuple(ClauseId(one) for one in clauses),
                    summary=" ".join((inspect.getdoc(maker) or "").split()),
                    make=maker,
                    needs=needs,
                    hazardous=hazardous,
                    index_elements=index_elements,
                    bank=bank,
                    designed=designed,
                )
            )
            return maker

        return put

    def out_of_scope(
        self,
        id: str,  # noqa: A002 - what it is
        engine: str,
        thread: str,
        *,
        summary: str,
        reason: str,
    ) -> None:
        """Put a fault there that no clause speaks about."""
        self._faults.append(
            Fault(
                id, self.kind, engine, thread, (), summary, state=State.OUT_OF_SCOPE, reason=reason
            )
        )


def missing_here(fault: Fault) -> str:
    """Say what the fault needs and this machine lacks; empty if nothing."""
    lacking = []
    if {Need.GPU, Need.GRAPH} & {*fault.needs} and not torch.cuda.is_available():
        lacking.append("no GPU is here")
    if Need.MEMORY in fault.needs:
        lacking.append(memory_short())
    return "; ".join(filter(None, lacking))
