"""How healthy the suite itself is: committed results about it, with the revision they were made at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

__all__ = ["Calibration", "FaultKind", "Health", "Power", "committed", "read_health"]

_OUT_OF_SCOPE: Final = "out of scope"


@dataclass(frozen=True, slots=True)
class Calibration:
    """How often right samplers reached a level in simulated runs.

    Attributes:
        clause: that was judged.
        law: which right law was drawn from.
        level: of the e-value, as a probability.
        runs: simulated.
        reached: runs that reached it.
        allowed: runs that may.

    """

    clause: str
    law: str
    level: float
    runs: int
    reached: int
    allowed: int


@dataclass(frozen=True, slots=True)
class Power:
    """Draws to the rejection of a fault, over the least that any test needs.

    Attributes:
        fault: in words.
        distance: total variation from the right law.
        least: draws that any test needs.
        ratio: draws in a whole run over those.

    """

    fault: str
    distance: float
    least: float
    ratio: float


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A row of the kill matrix: faults of one kind.

    Attributes:
        kind: in words.
        asked: faults of the kind that the suite was asked about.
        caught: those for which a right clause was reported.
        by: [clause, faults] that reported them, the busiest first.

    """

    kind: str
    asked: int
    caught: int
    by: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Health:
    """What is known about the suite; parts that are not committed are empty.

    Attributes:
        calibration: of right samplers.
        calibration_made: when and with which version.
        power: of the evidence.
        power_made: likewise.
        faults: the kill matrix by kind.
        faults_made: likewise, with revisions.

    """

    calibration: tuple[Calibration, ...] = ()
    calibration_made: str = ""
    power: tuple[Power, ...] = ()
    power_made: str = ""
    faults: tuple[FaultKind, ...] = ()
    faults_made: str = ""


def committed() -> Path:
    """Return the folder of committed results: links in a checkout, copies in an installation."""
    return Path(__file__).parent / "suite"


def read_health(reports: Path) -> Health:
    """Read what the folder has."""
    calibration = _read(reports / "evidence" / "calibration.json")
    power = _read(reports / "evidence" / "power.json")
    # of the whole bank, where that was run
    audit = _read(reports / "audit" / "full.json") or _read(reports / "audit" / "quick.json")
    return Health(
        calibration=tuple(
            Calibration(**{name: one[name] for name in Calibration.__slots__})
            for one in calibration.get("calibration", {}).get("levels", ())
        ),
        calibration_made=_made(calibration.get("made")),
        power=tuple(
            Power(one["fault"], one["total_variation"], one["least"], one["in_run"])
            for one in power.get("lines", ())
        ),
        power_made=_made(power.get("made")),
        faults=_kinds(audit.get("results", ())),
        faults_made=_made(audit or None),
    )


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    found: dict[str, Any] = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    return found


def _made(made: Mapping[str, Any] | None) -> str:
    if made is None:
        return ""
    revisions = (*made.get("revisions", ()),)
    at = f", revisions {', '.join(revisions)}" if revisions else ""
    return f"{made['command']}, {made['date']}, refsampler {made['refsampler']}{at}"


def _kinds(results: Sequence[Mapping[str, Any]]) -> tuple[FaultKind, ...]:
    found = []
    for kind in sorted({one["kind"] for one in results}):
        faults = [one for one in results if one["kind"] == kind and one["found"] != _OUT_OF_SCOPE]
        caught = [one for one in faults if one["found"] == "caught"]
        by: dict[str, int] = {}
        for one in caught:
            for clause in {catch["clause"] for catch in one["caught"]}:
                by[clause] = by.get(clause, 0) + 1
        busiest = sorted(by.items(), key=lambda entry: (-entry[1], entry[0]))
        if faults:
            found.append(FaultKind(kind, len(faults), len(caught), tuple(busiest)))
    return tuple(found)
