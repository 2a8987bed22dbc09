"""The contract: what a conforming sampler does, clause by clause, loaded from ``clauses.toml``."""

import hashlib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any, NewType

__all__ = [
    "Clause",
    "ClauseId",
    "Contract",
    "ContractError",
    "Level",
    "UnknownClauseError",
    "get",
    "load",
    "parse",
    "select",
]

ClauseId = NewType("ClauseId", str)

_ID_GRAMMAR = re.compile(r"[a-z]+(-[a-z]+)*\.[a-z]+(-[a-z]+)*")
_VERSION_GRAMMAR = re.compile(r"\d+\.\d+")
_REQUIRED = frozenset({"id", "level", "owner", "text", "reason", "since"})
_OPTIONAL = frozenset({"capability", "needs", "departs"})


class ContractError(ValueError):
    """The contract's file breaks its own rules."""


class UnknownClauseError(LookupError):
    """No clause has this id."""

    def __init__(self, clause: str, close: tuple[str, ...]) -> None:
        super().__init__(clause)
        self.clause = clause
        self.close = close

    def __str__(self) -> str:
        hint = f"; did you mean {' or '.join(self.close)}?" if self.close else ""
        return f"no clause is called {self.clause!r}{hint}"


class Level(StrEnum):
    """How binding a clause is, in the words of RFC 2119."""

    MUST = "MUST"
    SHOULD = "SHOULD"
    MAY = "MAY"


@dataclass(frozen=True, slots=True)
class Clause:
    """One thing that a conforming sampler does.

    ``owner`` is the lowest adapter level that can be credited with it: 1 filter and draw,
    2 batch sampler, 3 engine. ``capability`` names what a backend has to declare for the clause to
    apply, ``needs`` what the machine has to offer, ``departs`` where vLLM 0.25.1 does otherwise;
    each is empty where there is nothing to say.
    """

    id: ClauseId
    level: Level
    owner: int
    text: str
    reason: str
    since: str
    capability: str = ""
    needs: str = ""
    departs: str = ""

    @property
    def group(self) -> str:
        """The part of the id before the dot."""
        return self.id.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Contract:
    """All clauses in the order of the file; ``digest`` is the sha256 of that file, in hex."""

    version: str
    clauses: tuple[Clause, ...]
    digest: str


@cache
def load() -> Contract:
    """Return the contract that ships with this package."""
    return parse(files("refsampler").joinpath("clauses.toml").read_text(encoding="utf-8"))


def parse(text: str) -> Contract:
    """Read a contract from TOML.

    Raises:
        ContractError: a field is missing, unknown or out of range, or an id is malformed or used
            twice.
    """
    document = tomllib.loads(text)
    version = document.get("contract", "")
    if not isinstance(version, str) or not _VERSION_GRAMMAR.fullmatch(version):
        raise ContractError(f"contract = {version!r}; expected a version such as '1.0'")
    clauses = tuple(_clause(entry) for entry in document.get("clause", ()))
    seen: set[ClauseId] = set()
    for clause in clauses:
        if clause.id in seen:
            raise ContractError(f"{clause.id}: this id is used twice")
        seen.add(clause.id)
    return Contract(version, clauses, hashlib.sha256(text.encode()).hexdigest())


def _clause(entry: Mapping[str, Any]) -> Clause:
    name = entry.get("id", "(no id)")
    if missing := _REQUIRED - entry.keys():
        raise ContractError(f"{name}: missing {', '.join(sorted(missing))}")
    if unknown := entry.keys() - _REQUIRED - _OPTIONAL:
        raise ContractError(f"{name}: unknown field {', '.join(sorted(unknown))}")
    if not isinstance(name, str) or not _ID_GRAMMAR.fullmatch(name):
        raise ContractError(f"id = {name!r}; expected group.name in lower case with hyphens")
    if entry["level"] not in Level.__members__:
        raise ContractError(f"{name}: level = {entry['level']!r}; expected MUST, SHOULD or MAY")
    if type(entry["owner"]) is not int or not 1 <= entry["owner"] <= 3:
        raise ContractError(f"{name}: owner = {entry['owner']!r}; expected 1, 2 or 3")
    for field in entry.keys() - {"owner"}:
        if not isinstance(entry[field], str) or not entry[field].strip():
            raise ContractError(f"{name}: {field} = {entry[field]!r}; expected some text")
    if not _VERSION_GRAMMAR.fullmatch(entry["since"]):
        raise ContractError(f"{name}: since = {entry['since']!r}; expected a version such as '1.0'")
    return Clause(**{**entry, "id": ClauseId(name), "level": Level(entry["level"])})


def get(clause: str) -> Clause:
    """Return the clause with this id.

    Raises:
        UnknownClauseError: no clause has it; the message names those that come close.
    """
    known = {c.id: c for c in load().clauses}
    if clause not in known:
        raise UnknownClauseError(clause, tuple(get_close_matches(clause, known, n=3)))
    return known[ClauseId(clause)]


def select(glob: str) -> tuple[Clause, ...]:
    """Return the clauses whose id matches a shell pattern such as ``top-p.*``, in contract order.

    A group's name alone selects the whole group. Nothing matched is an empty tuple.
    """
    return tuple(c for c in load().clauses if fnmatchcase(c.id, glob) or c.group == glob)
