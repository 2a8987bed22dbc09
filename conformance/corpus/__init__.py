"""The regression corpus: minimal cases that fuzzing found, one file each, asked first by every check.

A file says which check judges the case, which clause it is about, and what was wrong with whom.  A
finding joins it by `refsampler corpus`; a file is never changed, as its case has the id of its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Final

import msgspec

from refsampler.clauses import ClauseId, get
from refsampler.conformance.case import Case, decode_case, encode_case

__all__ = ["Entry", "decode_entry", "encode_entry", "entries", "entry_of", "file_name"]

_SCALARS: Final = re.compile(r"\[\s+([^\[\]{}]*?)\s+\]")


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file.

    `check` judges the case, `clause` is the one it is about, `about` says in words what was wrong.
    """

    check: str
    clause: str
    about: str
    case: msgspec.Raw

    @property
    def read(self) -> Case:
        """The case.

        Raises:
            msgspec.ValidationError: it is none.

        """
        return decode_case(bytes(self.case))


def entry_of(check: str, clause: ClauseId, about: str, case: Case) -> Entry:
    """Return a new entry, whose case speaks about its clause alone.

    Raises:
        KeyError: the contract has no such clause.

    """
    own = replace(case, clauses=(get(clause).id,))
    return Entry(check=check, clause=clause, about=about, case=msgspec.Raw(encode_case(own)))


def file_name(entry: Entry) -> str:
    """Return the name of an entry's file: its clause and the id of its case."""
    return f"{entry.clause}-{entry.read.id}.json"


def encode_entry(entry: Entry) -> bytes:
    """Return the text of an entry's file: JSON with every list of numbers on one line."""
    document = {
        "check": entry.check,
        "clause": entry.clause,
        "about": entry.about,
        "case": json.loads(bytes(entry.case)),
    }
    text = json.dumps(document, indent=1)
    return (_SCALARS.sub(_on_one_line, text) + "\n").encode()


def _on_one_line(found: re.Match[str]) -> str:
    return f"[{' '.join(found[1].split())}]"


def decode_entry(text: bytes) -> Entry:
    """Read the text of a file.

    Raises:
        msgspec.ValidationError: it is no entry.

    """
    return msgspec.json.decode(text, type=Entry)


@cache
def entries() -> tuple[Entry, ...]:
    """Return every entry, in the order of the files' names.

    Raises:
        msgspec.ValidationError: a file is no entry.

    """
    return tuple(_read())


def _read() -> Iterator[Entry]:
    folder = files("refsampler.conformance.corpus")
    for file in sorted(folder.iterdir(), key=lambda one: one.name):
        if file.name.endswith(".json"):
            yield decode_entry(file.read_bytes())
