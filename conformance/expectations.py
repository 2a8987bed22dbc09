"""Expectations: failures that are known, each with its reason, beside what a run found.

    [[expect]]
    clause = "top-k.ties"
    backend = "my-kernel*"    # optional: a shell pattern of the backend's name
    status = "fail"
    reason = "keeps exactly k ids among ties"
    issue = "https://..."     # optional

An expected failure is still a FAIL: the run then "matches expectations" and exits 0, it does not
"conform".  A failure without an entry exits 1.  An entry whose clause passes, or that speaks about
nothing the backend is tested for, is stale: it is reported, and does not change the exit status.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import msgspec
import tomlkit
from tomlkit.items import AoT

from refsampler.clauses import ClauseId, load
from refsampler.conformance.decisions import Decision, exit_code, headline
from refsampler.conformance.verdict import ExitCode, Status

__all__ = [
    "Expectation",
    "ExpectationsError",
    "Stale",
    "apply_expectations",
    "as_expected",
    "expected_exit_code",
    "expected_headline",
    "read_expectations",
    "stale_entries",
    "updated_document",
]

_UNDECIDED: Final = (Status.INCONCLUSIVE, Status.ERROR)


class ExpectationsError(ValueError):
    """The file of expectations is refused; the message names the entry, the value and the range."""


class Expectation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One known failure.

    Attributes:
        clause: id in the contract.
        status: what is expected; only failures can be.
        reason: why; required.
        backend: shell pattern of the backend's name.
        issue: where it is discussed; empty without.

    """

    clause: str
    status: str
    reason: str
    backend: str = "*"
    issue: str = ""

    def covers(self, backend: str) -> bool:
        """Whether the entry speaks about this backend."""
        return fnmatchcase(backend, self.backend)


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    expect: tuple[Expectation, ...] = ()


@dataclass(frozen=True, slots=True)
class Stale:
    """An entry that says something no longer true.

    Attributes:
        entry: of the file.
        why: in words.
        passes: its clause passes now.

    """

    entry: Expectation
    why: str
    passes: bool


def read_expectations(path: Path) -> tuple[Expectation, ...]:
    """Return the entries of a file.

    Raises:
        ExpectationsError: the file is no TOML, or an entry lacks a field or has a wrong one.

    """
    try:
        document = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _Document)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise ExpectationsError(f"{path}: {error}") from error
    seen: set[tuple[str, str]] = set()
    for one in document.expect:
        where = f"{path}: the entry for clause {one.clause!r}"
        if one.status != Status.FAIL:
            raise ExpectationsError(
                f"{where}: status = {one.status!r} is refused: allowed is 'fail'"
            )
        if not one.reason.strip():
            raise ExpectationsError(f"{where}: reason is empty: allowed is a text that says why")
        if (one.clause, one.backend) in seen:
            raise ExpectationsError(f"{where} stands there twice: allowed is once for each backend")
        seen.add((one.clause, one.backend))
    return document.expect


def apply_expectations(
    decisions: Iterable[Decision], entries: Sequence[Expectation], backend: str
) -> tuple[Decision, ...]:
    """Put what is expected beside what was found; the status stays as it is."""
    covering = {one.clause: one for one in reversed(entries) if one.covers(backend)}
    return tuple(_beside(one, covering.get(str(one.verdict.clause))) for one in decisions)


def _beside(decision: Decision, entry: Expectation | None) -> Decision:
    if entry is None:
        return decision
    verdict = replace(decision.verdict, expected=Status.FAIL)
    issue = f" ({entry.issue})" if entry.issue else ""
    if verdict.status is Status.FAIL:
        reason = f"expected: {entry.reason}{issue}"
    elif verdict.status is Status.PASS:
        reason = f"unexpected pass; the expectation says: {entry.reason}{issue}"
    else:
        reason = decision.reason
    return replace(decision, verdict=verdict, reason=reason)


def as_expected(decision: Decision) -> bool:
    """Whether the clause failed and that was expected."""
    return decision.verdict.status is Status.FAIL and decision.verdict.expected is Status.FAIL


def expected_exit_code(decisions: Sequence[Decision], errors: Sequence[str]) -> int:
    """Return the exit code, with expected failures left out of it."""
    others = [one for one in decisions if not as_expected(one)]
    code = exit_code(others, errors)
    if code == ExitCode.NOTHING_RAN and len(others) < len(decisions):
        return ExitCode.CONFORMS
    return code


def expected_headline(decisions: Sequence[Decision], code: int) -> str:
    """Return the run in one line; with expected failures it matches, it does not conform."""
    line = headline(decisions, code)
    expected = sum(as_expected(one) for one in decisions)
    if not expected:
        return line
    if code == ExitCode.CONFORMS:
        line = f"matches expectations{line.removeprefix('conforms')}"
    return f"{line}; {expected} failed as expected"


def stale_entries(
    decisions: Sequence[Decision], entries: Sequence[Expectation], backend: str
) -> tuple[Stale, ...]:
    """Return the entries for this backend that its run contradicts; undecided clauses do not."""
    known = {str(clause.id) for clause in load().clauses}
    statuses = {str(one.verdict.clause): one.verdict.status for one in decisions}
    found = []
    for entry in entries:
        status = statuses.get(entry.clause)
        if entry.clause not in known:
            found.append(Stale(entry, "the contract has no such clause", passes=False))
        elif not entry.covers(backend) or status is None or status in _UNDECIDED:
            continue
        elif status is Status.PASS:
            found.append(Stale(entry, "the clause passes", passes=True))
        elif status is not Status.FAIL:
            words = str(status).replace("_", " ")
            found.append(Stale(entry, f"the clause is {words} for this backend", passes=False))
    return tuple(found)


def updated_document(text: str, decisions: Sequence[Decision], backend: str) -> str:
    """Return the file with what this run found; comments and all other entries stay.

    An entry whose clause passes goes, unless its pattern speaks about other backends too.  Each
    unexpected failure gets an entry with an empty reason, which `read_expectations` refuses until
    somebody has written one.
    """
    document = tomlkit.parse(text)
    entries = document.get("expect")
    if not isinstance(entries, AoT):
        entries = tomlkit.aot()
        document["expect"] = entries
    passing = {str(one.verdict.clause) for one in decisions if one.verdict.status is Status.PASS}
    gone = [
        place
        for place, entry in enumerate(entries)
        if str(entry.get("clause")) in passing and str(entry.get("backend", backend)) == backend
    ]
    for place in reversed(gone):
        del entries[place]
    for one in decisions:
        if one.verdict.status is Status.FAIL and one.verdict.expected is None:
            entries.append(_new_entry(one.verdict.clause, backend, one.verdict.effect))
    return tomlkit.dumps(document)


def _new_entry(clause: ClauseId, backend: str, effect: str) -> tomlkit.items.Table:
    table = tomlkit.table()
    table.add("clause", str(clause))
    table.add("backend", backend)
    table.add("status", str(Status.FAIL))
    reason = tomlkit.item("")
    reason.comment(" ".join(effect.split())[:160])
    table.add("reason", reason)
    return table
