"""Log: each fault's result on disk as it ends, so that an audit that is killed loses nothing."""

from __future__ import annotations

from pathlib import Path

import msgspec

from refsampler.conformance.audit.one import FaultResult
from refsampler.conformance.revision import revision

__all__ = ["AuditLog", "LogMismatchError", "Settings"]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What all results of one log have in common; its first line.

    Attributes:
        profile: quick or full.
        run_seed: of every fault's run.
        limit_s: seconds that a fault got.
        named_only: only the checks of the fault's clauses were asked.
        leave_out: without the bets and the checks that were made for the fault.

    """

    profile: str
    run_seed: int
    limit_s: float
    named_only: bool = False
    leave_out: bool = False


class LogMismatchError(ValueError):
    """A log cannot be continued; the message names the field and both values."""


class AuditLog:
    """A file of JSON lines: the settings, then one result a fault, in the order in which they ended.

    Args:
        path: of the file; its folder is made.  None keeps the results in memory only.
        settings: of the audit.

    Raises:
        LogMismatchError: the file holds an audit with other settings.

    """

    def __init__(self, path: Path | None, settings: Settings) -> None:
        self._path = path
        self.settings = settings
        self._results: dict[str, FaultResult] = {}
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        before, results = _read(path)
        if before is None:
            path.write_bytes(msgspec.json.encode(settings) + b"\n")
            return
        for name in Settings.__struct_fields__:
            theirs, ours = getattr(before, name), getattr(settings, name)
            if theirs != ours:
                raise LogMismatchError(
                    f"{path}: {name} = {theirs}, asked for is {ours}: remove it or write elsewhere"
                )
        # written anew without a line that was cut off
        lines = [msgspec.json.encode(one) for one in (before, *results)]
        path.write_bytes(b"\n".join(lines) + b"\n")
        self._results = {one.id: one for one in results}

    @property
    def results(self) -> tuple[FaultResult, ...]:
        """What is known, of each fault the last."""
        return tuple(self._results.values())

    def add(self, result: FaultResult) -> None:
        """Put a result on disk."""
        result = msgspec.structs.replace(result, revision=revision())
        self._results[result.id] = result
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(result) + b"\n")

    @staticmethod
    def seed_of(path: Path) -> int | None:
        """Return the run seed of the audit in a file; None if there is none."""
        before, _ = _read(path)
        return None if before is None else before.run_seed


def _read(path: Path) -> tuple[Settings | None, tuple[FaultResult, ...]]:
    """Read a log; the last line may be cut off."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    if not lines:
        return None, ()
    try:
        settings = msgspec.json.decode(lines[0], type=Settings)
    except msgspec.DecodeError as error:
        raise LogMismatchError(f"{path}: no log of an audit: {error}") from error
    results = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            results.append(msgspec.json.decode(line, type=FaultResult))
        except msgspec.DecodeError as error:
            if number < len(lines):
                raise LogMismatchError(f"{path}: line {number} cannot be read: {error}") from error
    return settings, tuple(results)
