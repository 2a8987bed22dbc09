"""What is drawn for independence: how many equal flat rows, calls and streams, paired at which lags."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
import torch

from refsampler.backends.protocol import Capabilities, Feature
from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import Asked, clause_ids
from refsampler.conformance.checks.processes import packed, unpacked
from refsampler.conformance.designed.tails import FLAT_VOCAB, flat_case
from refsampler.conformance.evidence.pairings import Lag, call_lags, row_lags, stream_lags
from refsampler.conformance.memory import ELEMENTS, memory_short, taking_turns
from refsampler.conformance.series import Later, SeriesSubject
from refsampler.conformance.subject import OpenSubject

__all__ = ["INDEPENDENCE", "SIZES", "Pairing", "Size"]

INDEPENDENCE = clause_ids("independence.rows", "independence.calls", "independence.streams")

_ENGINE_ROWS = 512
_WIDE = 2**17
_BEYOND = 64
"""Pairs at the largest lag: of 2^17 equally likely ids three coincidences say enough."""


class Pairing(StrEnum):
    """What is paired with what."""

    ROWS = "rows of one call"
    CALLS = "successive calls"
    UNIFORMS = "later torch uniforms"
    RACE = "later torch race"
    THREADS = "two threads"
    PROCESSES = "processes without seeds"
    SEEDED_PROCESSES = "processes with other seeds"

    @property
    def in_processes(self) -> bool:
        """Whether the streams are those of processes."""
        return self in (Pairing.PROCESSES, Pairing.SEEDED_PROCESSES)


@dataclass(frozen=True, slots=True)
class Size:
    """Rows of a call, and how many calls a profile makes.

    Attributes:
        name: of the check.
        clause: that is judged.
        pairing: what is paired with what.
        rows: of each call.
        calls: [profile, calls] of the profiles that have it.
        lags: pairings.
        vocab: ids of the flat row.
        far: what the lags are for, in words, if they need all of the rows; empty otherwise.

    """

    name: str
    clause: ClauseId
    pairing: Pairing
    rows: int
    calls: tuple[tuple[str, int], ...]
    lags: tuple[Lag, ...]
    vocab: int = FLAT_VOCAB
    far: str = ""

    def case(self, profile: str) -> Case:
        """Return the flat row."""
        return flat_case(self.clause, dict(self.calls)[profile], self.vocab)

    @property
    def first_case(self) -> Case:
        """Return the case of the first profile that has it."""
        return self.case(self.calls[0][0])

    def applies(self, capabilities: Capabilities, profile: str) -> bool:
        """Whether a backend can be asked, and is, in a profile."""
        explicit = self.pairing is Pairing.SEEDED_PROCESSES
        known = not explicit or Feature.SEED in capabilities.features
        return known and profile in dict(self.calls) and not self.unfit(capabilities)

    def unfit(self, capabilities: Capabilities) -> str:
        """Say why rows so far apart cannot be had here; empty if they can."""
        if not self.far:
            return ""
        elements = self.rows * self.vocab
        if capabilities.level == 3 and self.rows > _ENGINE_ROWS:
            return f"an engine would admit {self.rows:,} requests"
        if self.rows_for(capabilities) < self.rows:
            return f"{elements:.2g} logits are more than the backend takes in a call"
        if elements < ELEMENTS:
            return ""
        if torch.device(capabilities.device).type == "cpu":
            return (
                f"{elements:.2g} logits take minutes on a CPU, and more memory than a call may use"
            )
        return memory_short(capabilities.device, elements)

    def rows_for(self, capabilities: Capabilities) -> int:
        """Return the rows of a call; an engine admits every row as a request of its own."""
        rows = min(self.rows, _ENGINE_ROWS) if capabilities.level == 3 else self.rows
        most = capabilities.max_elements
        return rows if most is None else max(1, min(rows, most // self.vocab))

    def streams(self, case: Case) -> int:
        """Return how many streams the subject draws; in full one of three processes may differ."""
        if self.pairing.in_processes:
            return 2 if case.calls == self.calls[0][1] else 3
        return 2 if self.pairing is Pairing.THREADS else 1

    def ask(self, subject: OpenSubject, case: Case) -> Asked:
        """Draw all calls of a case; runs where the subject lives, large ones when there is room."""
        rows, device = self.rows_for(subject.capabilities), subject.capabilities.device
        elements = rows * self.vocab
        with taking_turns(device, elements):
            short = memory_short(device, elements) if elements >= ELEMENTS else ""
            return Asked(unasked=short) if short else self._ask(subject, case, rows)

    def _ask(self, subject: OpenSubject, case: Case, rows: int) -> Asked:
        streams = SeriesSubject(subject.backend, subject.run_seed)
        match self.pairing:
            case Pairing.THREADS:
                ids = streams.threads(case, rows, case.calls)
            case Pairing.ROWS | Pairing.CALLS:
                ids = streams.series(case, rows, case.calls).ids[None]
            case Pairing.UNIFORMS | Pairing.RACE:
                uniforms = self.pairing is Pairing.UNIFORMS
                later = Later.UNIFORMS if uniforms else Later.RACE
                found = streams.series(case, rows, case.calls, later)
                # of a flat law, u gives the id floor(u V)
                scale = case.logits.vocab if uniforms else 1
                ids = np.stack([found.ids, (found.later * scale).astype(np.int64)])
            case Pairing.PROCESSES | Pairing.SEEDED_PROCESSES:
                explicit = self.pairing is Pairing.SEEDED_PROCESSES
                ids = streams.own_stream(case, rows, case.calls, explicit=explicit)
        drawn = rows * case.calls * (2 if self.pairing is Pairing.THREADS else 1)
        return Asked(draws=drawn, ids=packed(ids))

    def together(self, case: Case, asked: tuple[Asked, ...]) -> Asked:
        """Put the streams of processes side by side."""
        streams = np.stack([unpacked(one.ids, case.calls, -1) for one in asked])
        return Asked(draws=sum(one.draws for one in asked), ids=packed(streams))


_ROWS, _CALLS, _STREAMS = INDEPENDENCE
SIZES: Final = (
    # calls are averaged here, so more of them say no more
    Size(
        "independent-rows",
        _ROWS,
        Pairing.ROWS,
        2**14,
        (("quick", 2), ("full", 4)),
        row_lags(2**14, FLAT_VOCAB),
    ),
    # row counters of 15 and 16 bits repeat after 2^15 and 2^16 rows
    Size(
        "independent-many-rows",
        _ROWS,
        Pairing.ROWS,
        2**16 + 2**13,
        (("quick", 1), ("full", 2)),
        tuple(Lag(0, 2**power) for power in range(8, 17)),
        vocab=64,
        far="2^8 to 2^16 rows apart",
    ),
    # and counters of logits, which run over row x V, after so many of them
    Size(
        "independent-far-rows",
        _ROWS,
        Pairing.ROWS,
        2**24 // _WIDE + _BEYOND,
        (("full", 1),),
        (Lag(0, 2**24 // _WIDE),),
        vocab=_WIDE,
        far="2^24 logits apart",
    ),
    Size(
        "independent-farthest-rows",
        _ROWS,
        Pairing.ROWS,
        2**32 // _WIDE + _BEYOND,
        (("full", 1),),
        (Lag(0, 2**31 // _WIDE), Lag(0, 2**32 // _WIDE)),
        vocab=_WIDE,
        far="2^31 and 2^32 logits apart",
    ),
    # and rows here
    Size(
        "independent-calls", _CALLS, Pairing.CALLS, 512, (("quick", 64), ("full", 512)), call_lags()
    ),
    Size(
        "later-uniforms",
        _STREAMS,
        Pairing.UNIFORMS,
        1024,
        (("quick", 8), ("full", 64)),
        stream_lags(),
    ),
    Size("later-race", _STREAMS, Pairing.RACE, 1024, (("quick", 6), ("full", 48)), stream_lags(4)),
    Size("threads", _STREAMS, Pairing.THREADS, 512, (("quick", 32), ("full", 256)), stream_lags(4)),
    Size(
        "processes",
        _STREAMS,
        Pairing.PROCESSES,
        256,
        (("quick", 24), ("full", 96)),
        stream_lags(4),
    ),
    Size(
        "processes-seeded",
        _STREAMS,
        Pairing.SEEDED_PROCESSES,
        128,
        (("quick", 24), ("full", 96)),
        stream_lags(4),
    ),
)
