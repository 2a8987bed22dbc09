"""The result of a run: counts by check, clause and feature, as JSON and as markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tests.vllm_parity.findings import Finding, Kind

__all__ = ["Check", "Difference", "Result", "Unexplained", "Versions", "tally", "write"]

LEGEND = """\
*Open*: the clause allows both results, a choice among ties or values that float32 cannot tell apart;
the exact law bounds it. *Departs*: the contract does otherwise on purpose and its clause says so.
*Unexplained*: neither; such a run fails."""

LEFT_OUT = """\
Not compared: the thinking budget, speculative decoding, custom processors, vLLM's GPU paths and its
V2 model runner."""


@dataclass(frozen=True, slots=True)
class Versions:
    """What was compared, and with what."""

    vllm: str
    torch: str
    python: str
    platform: str
    commit: str


@dataclass(frozen=True, slots=True)
class Check:
    """How often one comparison was made, and how it ended."""

    check: str
    agrees: int
    open: int
    departs: int
    unexplained: int


@dataclass(frozen=True, slots=True)
class Difference:
    """How often a clause explains a difference, and what it says of vLLM."""

    kind: Kind
    clause: str
    check: str
    count: int
    batches: int
    says: str


@dataclass(frozen=True, slots=True)
class Unexplained:
    """A difference that no clause explains, in the smallest batch that was found.

    Attributes:
        finding: what differs in that batch.
        mode: of the logprobs.
        case: the batch, as `refsampler.conformance.case` writes it.
        count: how often the run met such a difference.

    """

    finding: Finding
    mode: str
    case: msgspec.Raw
    count: int


@dataclass(frozen=True, slots=True)
class Result:
    """Everything a run found."""

    date: str
    command: str
    versions: Versions
    run_seed: int
    batches: int
    rows: int
    seconds: float
    features: Mapping[str, int]
    checks: Sequence[Check]
    differences: Sequence[Difference]
    unexplained: Sequence[Unexplained]


def tally(
    found: Sequence[Sequence[Finding]], departs: Mapping[str, str], texts: Mapping[str, str]
) -> tuple[tuple[Check, ...], tuple[Difference, ...]]:
    """Count the findings of all batches.

    Args:
        found: the findings of each batch.
        departs: clause -> where vLLM does otherwise.
        texts: clause -> what it says.

    """
    ends = Counter((one.check, one.kind) for batch in found for one in batch)
    names = sorted({check for check, _ in ends})
    checks = tuple(Check(name, *(ends[name, kind] for kind in Kind)) for name in names)
    key = ((one.kind, one.clause, one.check) for batch in found for one in batch)
    counts = Counter(one for one in key if one[0] is not Kind.AGREES)
    batches = Counter(
        one for batch in found for one in {(one.kind, one.clause, one.check) for one in batch}
    )
    differences = (
        Difference(
            *one, counts[one], batches[one], (departs if one[0] is Kind.DEPARTS else texts)[one[1]]
        )
        for one in sorted(counts)
    )
    return checks, tuple(differences)


def write(result: Result, folder: Path) -> None:
    """Write result.json and README.md."""
    folder.mkdir(parents=True, exist_ok=True)
    encoded = msgspec.json.format(msgspec.json.encode(result), indent=1)
    (folder / "result.json").write_bytes(encoded + b"\n")
    (folder / "README.md").write_text(_markdown(result), encoding="utf-8")


def _markdown(result: Result) -> str:
    versions = result.versions
    total = sum(one.count for one in result.unexplained)
    lines = [
        "# The reference against the real vLLM sampler",
        "",
        f"{result.batches} batches ({result.rows} rows) went through the reference and through",
        f"vLLM {versions.vllm}'s own input batch and Sampler on a CPU.",
        f"**{total} differences are unexplained.**",
        "",
        f"{result.date}, commit {versions.commit}, torch {versions.torch},",
        f"Python {versions.python}, {versions.platform}, {result.seconds:.0f} s.",
        f"Run again: `{result.command}` (`make vllm-parity`). All counts: `result.json`.",
        "",
        LEGEND,
        "",
        "## Comparisons",
        "",
        "| compared | agrees | open | departs | unexplained |",
        "| --- | ---: | ---: | ---: | ---: |",
        *(
            f"| {c.check} | {c.agrees} | {c.open} | {c.departs} | {c.unexplained} |"
            for c in result.checks
        ),
        "",
        "## Differences by clause",
        "",
        "| kind | clause | compared | times | batches | the clause on vLLM, or itself where open |",
        "| --- | --- | --- | ---: | ---: | --- |",
        *(
            f"| {d.kind} | `{d.clause}` | {d.check} | {d.count} | {d.batches} | {d.says} |"
            for d in result.differences
        ),
        "",
        "## What the batches exercised",
        "",
        "| feature | batches |",
        "| --- | ---: |",
        *(f"| {name} | {count} |" for name, count in result.features.items()),
        "",
        LEFT_OUT,
    ]
    for one in result.unexplained:
        finding = one.finding
        lines += [
            "",
            f"## Unexplained, {one.count} times: {finding.check} (`{finding.clause}`)",
            "",
            f"Row {finding.row}, {one.mode}. Reference: {finding.expected}. vLLM: {finding.seen}.",
            "",
            "```json",
            bytes(one.case).decode(),
            "```",
        ]
    return "\n".join(lines) + "\n"
