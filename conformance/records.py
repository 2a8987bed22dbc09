"""Records: the lines of a report, one JSON object each, on disk before the next case starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Self

import msgspec

from refsampler.backends.protocol import Capabilities

__all__ = [
    "CaseRecord",
    "Checkpoint",
    "FindingRecord",
    "Footer",
    "Header",
    "LawRecord",
    "MixedRecord",
    "PairsRecord",
    "PartRecord",
    "Record",
    "ReportWriter",
    "TailRecord",
    "VerdictRecord",
    "read_report",
]


class Header(msgspec.Struct, frozen=True, tag="header", tag_field="record", kw_only=True):
    """What ran, where, against which contract, with which seed and budget.

    `revision` is the commit of the suite, where a checkout of it ran.
    """

    backend: str
    backend_version: str
    spec: str
    level: int
    device: str
    semantics: str
    delta: float
    floor: float
    refsampler: str
    torch: str
    python: str
    machine: str
    contract: str
    contract_digest: str
    profile: str
    clauses: str
    run_seed: int
    time_budget: float | None
    alpha: float
    charge: float
    planned: dict[str, int]
    started: str
    plan: str = ""
    shard: tuple[int, int] | None = None
    capabilities: Capabilities | None = None
    free_bytes: int | None = None
    jobs: int = 1
    revision: str = ""


class FindingRecord(msgspec.Struct, frozen=True):
    """One thing that a case showed: a clause broken, expected and seen in words.

    Any of the candidates would explain it; the verdicts name those that explain everything.
    """

    clause: str
    expected: str
    seen: str
    charge: float = 0.0
    row: int | None = None
    call: int | None = None
    candidates: tuple[str, ...] = ()
    given: str | None = None
    unless: str | None = None
    guess: bool = False


class CaseRecord(msgspec.Struct, frozen=True, tag="case", tag_field="record", kw_only=True):
    """One case judged; no findings means that every clause it speaks about was obeyed.

    `crashed` says that it speaks about `output.returns` only; `figures` holds [clause, words];
    `unasked` says why the backend could not be asked, hence that nothing was judged.
    """

    check: str
    id: str
    case: msgspec.Raw
    clauses: tuple[str, ...]
    draws: int
    seconds: float
    findings: tuple[FindingRecord, ...] = ()
    shrunk_from: str | None = None
    crashed: bool = False
    figures: tuple[tuple[str, str], ...] = ()
    unasked: str = ""


class PartRecord(msgspec.Struct, frozen=True, tag="part", tag_field="record", kw_only=True):
    """Last line of what a process asked beside the run's own: errors of the harness there.

    `unjudged` are the clauses of the cases that they are about.
    """

    errors: tuple[str, ...] = ()
    unjudged: tuple[str, ...] = ()


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """What a law, and the clause that pools it, say at the end of the law; null is -infinity.

    `components` are log e of the declared alternatives, `best` a bet as name, log e and weighted
    log e, `cells` draws that went into cells.
    """

    components: tuple[float | None, ...]
    log_e: float
    best: tuple[str, float | None, float | None]
    cells: int
    skipped: int
    outside: int
    pool_log_e_max: float
    pool_best: tuple[str, float | None, float | None]
    pool_failed: bool


class LawRecord(msgspec.Struct, frozen=True, tag="law", tag_field="record", kw_only=True):
    """Counts of one law case after a batch: enough to judge again without sampling again.

    `counts` holds [id, count] pairs of ids that were drawn; `log_e` is the case's share of the
    pooled evidence at that checkpoint.  Without a `checkpoint` the law was cut short.  `planned` are
    the most draws; a law that was accepted early names in `refuted` what it had waited for.  `path`
    holds [draws, log e] of every look.
    """

    check: str
    id: str
    case: msgspec.Raw
    draws: int
    outside: int
    counts: tuple[tuple[int, int], ...]
    log_e: float
    seconds: float
    tv_upper: float | None = None
    planned: int = 0
    refuted: tuple[str, ...] = ()
    checkpoint: Checkpoint | None = None
    path: tuple[tuple[int, float], ...] = ()


class MixedRecord(msgspec.Struct, frozen=True, tag="mixed", tag_field="record", kw_only=True):
    """A batch of which every row has another law.

    `ids` are the draws, call by call, as zlib-compressed little-endian int32; without a
    `checkpoint` the batch was cut short.
    """

    check: str
    id: str
    case: msgspec.Raw
    rows: int
    calls: int
    draws: int
    skipped: int
    outside: int
    log_e: float
    best: str
    ids: bytes
    seconds: float
    checkpoint: Checkpoint | None = None


class TailRecord(msgspec.Struct, frozen=True, tag="tail", tag_field="record", kw_only=True):
    """One grade of the tail: counts of the ids drawn, and log e at every look.

    `reached` is None if the grade was cut short; `log_e` holds [draws, log e].
    """

    check: str
    id: str
    case: msgspec.Raw
    grade: float
    required: bool
    reached: bool | None
    draws: int
    hits: int
    skipped: int
    outside: int
    distinct: int | None
    expected_distinct: float | None
    counts: tuple[tuple[int, int], ...]
    log_e: tuple[tuple[int, float], ...]
    seen: str
    seconds: float


class PairsRecord(msgspec.Struct, frozen=True, tag="pairs", tag_field="record", kw_only=True):
    """One case of an independence clause.

    `ids` are the draws, calls of the second stream after those of the first, as zlib-compressed
    little-endian int32: enough to judge again.
    """

    check: str
    id: str
    case: msgspec.Raw
    clause: str
    pairing: str
    rows: int
    calls: int
    pairs: int
    skipped: int
    log_e: float
    best: str
    ids: bytes
    seconds: float


class VerdictRecord(msgspec.Struct, frozen=True, tag="verdict", tag_field="record", kw_only=True):
    """One clause decided; the fields are those of `Verdict` beside the reason in words.

    `effect` is what a failure expected and saw, also where the reason is that it was expected.
    """

    clause: str
    status: str
    reason: str
    case: str | None
    log_e: float | None
    log_threshold: float | None
    false_alarm: float
    cases: int
    draws: int
    would_see: tuple[tuple[str, float], ...]
    replay: str
    expected: str | None = None
    effect: str = ""


class Footer(msgspec.Struct, frozen=True, tag="footer", tag_field="record", kw_only=True):
    """How the run ended."""

    exit_code: int
    headline: str
    cases: int
    draws: int
    seconds: float
    error: str | None = None


Record = (
    Header
    | CaseRecord
    | LawRecord
    | MixedRecord
    | TailRecord
    | PairsRecord
    | PartRecord
    | VerdictRecord
    | Footer
)

_decoder = msgspec.json.Decoder(Record)


class ReportWriter:
    """Appends records to a JSONL file; a killed run leaves every finished record behind.

    Args:
        stream: the file; None writes nowhere.
        copy: told every line once it is written.

    """

    def __init__(
        self, stream: IO[bytes] | None, copy: Callable[[bytes], None] | None = None
    ) -> None:
        self._stream, self._copy = stream, copy

    def __enter__(self) -> Self:
        """Return the writer itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        if self._stream is not None:
            self._stream.close()

    def write(self, record: Record) -> None:
        """Append one line and flush it."""
        if self._stream is not None:
            line = msgspec.json.encode(record, order="deterministic") + b"\n"
            self._stream.write(line)
            self._stream.flush()
            if self._copy is not None:
                self._copy(line)


def read_report(path: Path) -> Iterator[Record]:
    """Yield the records of a report; an unfinished last line of a killed run is left out.

    Raises:
        msgspec.DecodeError: a finished line is no record.

    """
    yield from _decode(path.read_bytes().splitlines(keepends=True))


def _decode(lines: Iterable[bytes]) -> Iterator[Record]:
    for line in lines:
        if line.endswith(b"\n"):
            yield _decoder.decode(line)
