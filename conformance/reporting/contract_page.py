"""The page of the contract, generated: every clause with its checks and the faults that break it.

``python -m refsampler.conformance.reporting.contract_page`` prints it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import click

from refsampler.clauses import Clause, ClauseId, load
from refsampler.conformance.checks import all_checks
from refsampler.conformance.checks.rows import EVERY_CASE
from refsampler.conformance.faults.registry import all_faults

__all__ = ["contract_page"]

_OWNERS: Final = {1: "kernel (level 1)", 2: "batch sampler (level 2)", 3: "engine (level 3)"}
_HEAD: Final = """# The contract

Generated from `refsampler/clauses.toml`, the checks and the bank of faults by `make docs`; edit those.

The owner is the lowest adapter level that can be credited with a clause. A fault is a public one of a real
sampler, in `conformance/faults/`; that it is listed says that it breaks the clause, not that the suite caught it
(`reports/audit/` says which were).
"""


def contract_page() -> str:
    """Return the page as markdown."""
    checks: dict[ClauseId, list[str]] = {}
    for check in all_checks():
        for tested in check.clauses:
            checks.setdefault(tested, []).append(check.name)
    faults: dict[ClauseId, list[str]] = {}
    for fault in all_faults():
        for broken in fault.clauses[:1]:
            faults.setdefault(broken, []).append(fault.id)
    contract = load()
    lines = [_HEAD, f"Contract {contract.version}, {len(contract.clauses)} clauses."]
    group = ""
    for clause in contract.clauses:
        if clause.group != group:
            group = clause.group
            lines += ["", f"## {group}"]
        lines += ["", *_clause(clause, checks, faults)]
    return "\n".join(lines) + "\n"


def _clause(
    clause: Clause, checks: Mapping[ClauseId, list[str]], faults: Mapping[ClauseId, list[str]]
) -> Iterator[str]:
    yield f"### `{clause.id}`"
    yield ""
    yield clause.text
    yield ""
    applies = f", for backends that declare {clause.capability}" if clause.capability else ""
    yield f"* {clause.level}, owner: {_OWNERS[clause.owner]}{applies}; since contract {clause.since}"
    if clause.needs:
        yield f"* needs: {clause.needs}"
    yield f"* reason: {clause.reason}"
    if clause.departs:
        yield f"* vLLM 0.25.1 departs: {clause.departs}"
    every = "; every exact case speaks about it too" if clause.id in EVERY_CASE else ""
    named = ", ".join(f"`{name}`" for name in checks.get(clause.id, ())) or "none of its own"
    yield f"* checks: {named}{every}"
    yield f"* faults that break it: {', '.join(faults.get(clause.id, ())) or 'none in the bank'}"


if __name__ == "__main__":
    click.echo(contract_page(), nl=False)
