"""Blame: the few clauses that explain what a run showed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from refsampler.clauses import ClauseId
from refsampler.conformance.case import Case
from refsampler.conformance.checks import Finding

__all__ = ["Blame"]


@dataclass(slots=True)
class Blame:
    """Clauses that are blamed for breaches, few by few.

    Attributes:
        asked: clauses that cases were made for.
        made: how many, of those whose first clause it is.
        open: breaches that nothing explains yet.
        found: clause -> what it explains.

    """

    asked: frozenset[ClauseId]
    made: Mapping[ClauseId, int]
    open: list[tuple[Case, Finding]]
    found: dict[ClauseId, list[tuple[Case, Finding]]] = field(default_factory=dict)

    def cover(self, breaches: list[tuple[Case, Finding]]) -> None:
        """Blame clauses until none of these breaches is left that one is known to explain.

        Of clauses that explain as much, the one that a larger share of the cases shows which were
        made for it first of all.
        """
        wanted = {id(finding) for _, finding in breaches}
        while True:
            # what an earlier one explains is laid to no other, nor shows another
            shown = {
                name for case, one in self.open for name in _named(one) if name in case.clauses
            }
            votes = Counter(
                name
                for _, finding in self.open
                for name in _named(finding)
                if id(finding) in wanted
                and (not finding.candidates or name in shown or name not in self.asked)
            )
            if not votes:
                return
            most = max(votes, key=lambda name: (votes[name], self._share(name)))
            self.found[most] = [one for one in self.open if most in _named(one[1])]
            self.open = [one for one in self.open if most not in _named(one[1])]

    def _share(self, name: ClauseId) -> float:
        shown = {
            id(case)
            for case, one in self.open
            if name in _named(one) and case.clauses[:1] == (name,)
        }
        return len(shown) / max(self.made.get(name, 0), 1)


def _named(finding: Finding) -> tuple[ClauseId, ...]:
    return finding.candidates or (finding.clause,)
