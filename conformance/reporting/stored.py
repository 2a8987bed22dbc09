"""A stored run: the records of one report, sorted by kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from refsampler.clauses import ClauseId, Level, UnknownClauseError, get
from refsampler.conformance.records import (
    CaseRecord,
    Footer,
    Header,
    LawRecord,
    MixedRecord,
    PairsRecord,
    Record,
    TailRecord,
    VerdictRecord,
    read_report,
)
from refsampler.conformance.verdict import Status

__all__ = ["NOTE", "REPORT", "AskedRecord", "NoReportError", "StoredRun", "read_run"]

REPORT: Final = "report.jsonl"
"""Name of the report in its folder."""

NOTE: Final = "note.txt"
"""Name of a file beside it that says in words what no record does, as the machine's name."""

AskedRecord = CaseRecord | LawRecord | MixedRecord | TailRecord | PairsRecord
"""A record of one case."""

_R = TypeVar("_R", bound=Record)


class NoReportError(ValueError):
    """There is no report, or it cannot be read; says why."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredRun:
    """One report.

    Attributes:
        folder: where it lies.
        header: what ran.
        cases: exact and near-certain cases, minimal ones too.
        laws: of one row each.
        mixed: batches of many laws.
        tails: grades.
        pairs: independence and drafts.
        verdicts: one a clause.
        footer: how it ended; None of a run that was killed.
        note: what somebody wrote beside it; empty without.

    """

    folder: Path
    header: Header
    cases: tuple[CaseRecord, ...]
    laws: tuple[LawRecord, ...]
    mixed: tuple[MixedRecord, ...]
    tails: tuple[TailRecord, ...]
    pairs: tuple[PairsRecord, ...]
    verdicts: tuple[VerdictRecord, ...]
    footer: Footer | None
    note: str = ""

    @property
    def asked(self) -> tuple[AskedRecord, ...]:
        """Return every record of a case, whatever its kind."""
        return (*self.cases, *self.laws, *self.mixed, *self.tails, *self.pairs)

    def verdict(self, clause: str) -> VerdictRecord | None:
        """Return what was decided about a clause; None if nothing was."""
        return next((one for one in self.verdicts if one.clause == clause), None)

    def of_status(self, status: Status) -> tuple[VerdictRecord, ...]:
        """Return the verdicts of one status."""
        return tuple(one for one in self.verdicts if one.status == status)

    def level(self, clause: str) -> Level:
        """Return how binding a clause is; one that this contract does not know is a MUST."""
        try:
            return get(ClauseId(clause)).level
        except UnknownClauseError:
            return Level.MUST


def read_run(place: Path) -> StoredRun:
    """Read the report in a folder, or a report file.

    Raises:
        NoReportError: there is none, or a finished line is no record.

    """
    path = place / REPORT if place.is_dir() else place
    try:
        records = tuple(read_report(path))
    except OSError as error:
        raise NoReportError(f"{path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise NoReportError(f"{path}: no report: {error}") from error
    headers = _of(records, Header)
    if not headers:
        raise NoReportError(f"{path}: a report begins with a header, this does not")
    footers = _of(records, Footer)
    return StoredRun(
        folder=path.parent,
        header=headers[0],
        cases=_of(records, CaseRecord),
        laws=_of(records, LawRecord),
        mixed=_of(records, MixedRecord),
        tails=_of(records, TailRecord),
        pairs=_of(records, PairsRecord),
        verdicts=_of(records, VerdictRecord),
        footer=footers[-1] if footers else None,
        note=_note(path.parent / NOTE),
    )


def _note(path: Path) -> str:
    return " ".join(path.read_text(encoding="utf-8").split()) if path.is_file() else ""


def _of(records: Sequence[Record], kind: type[_R]) -> tuple[_R, ...]:
    return tuple(one for one in records if isinstance(one, kind))
