"""The thinking budget: close a thinking section that has used up its ids.

The rule is a pure function of the history, `forced_id`; nothing is remembered between steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Float32
from torch import Tensor

from refsampler.request import PLACEHOLDER, Request, ThinkingMarkers
from refsampler.validation import ParameterError

__all__ = ["CEILING", "FORCED", "ThinkingBudget", "forced_id"]

FORCED = 1e9
"""The logit of a forced id, vLLM's value."""

CEILING = 1e8
"""Other logits of a forced row are cut here: a huge bias or repetition penalty must not win."""


@dataclass(frozen=True, slots=True)
class _Row:
    """What decides whether a row is forced; `output` may be live."""

    prompt: Sequence[int]
    output: Sequence[int]
    drafts: Sequence[int]
    budget: int | None


@dataclass(frozen=True, slots=True)
class ThinkingBudget:
    """The budgets of a batch (clause `thinking.force`).

    Attributes:
        markers: the ids that open and close a thinking section.
        rows: one entry a row of the logits.

    """

    markers: ThinkingMarkers
    rows: tuple[_Row, ...]

    @classmethod
    def of(
        cls,
        requests: Sequence[Request],
        markers: ThinkingMarkers | None,
        outputs: Sequence[Sequence[int]] | None = None,
    ) -> Self | None:
        """Return the budgets of `requests`, or None if nothing can ever be forced.

        Args:
            requests: one a row.
            markers: None if the model does not think.
            outputs: replace the requests' own, as live lists.

        Raises:
            ParameterError: a request has a budget, and the model does not think.

        """
        budgets = [one.params.thinking_token_budget for one in requests]
        asked = next((budget for budget in budgets if budget is not None), None)
        if asked is None:
            return None
        if markers is None:
            allowed = "None without thinking markers"
            raise ParameterError("thinking_token_budget", asked, allowed)
        written = [one.output for one in requests] if outputs is None else outputs
        return cls(
            markers,
            tuple(
                _Row(one.prompt, output, one.drafts, one.params.thinking_token_budget)
                for one, output in zip(requests, written, strict=True)
            ),
        )

    def at_rows(self, rows: Sequence[int], outputs: Sequence[Sequence[int]]) -> Self:
        """Return the budgets of a batch whose row i is row `rows[i]` with another output."""
        return replace(
            self,
            rows=tuple(
                replace(self.rows[row], output=output, drafts=())
                for row, output in zip(rows, outputs, strict=True)
            ),
        )

    def apply(
        self, logits: Float32[Tensor, "num_tokens vocab"], *, predict_bonus_token: bool
    ) -> Float32[Tensor, "num_tokens vocab"]:
        """Return the logits with every forced id at 1e9, so that no mask or bias beats it.

        Args:
            logits: after the penalties.
            predict_bonus_token: the drafts are history, as for all steps before (`spec.history`).

        """
        forced = [self._forced(row, with_drafts=predict_bonus_token) for row in self.rows]
        wanted = torch.tensor([-1 if one is None else one for one in forced], device=logits.device)
        is_forced = wanted[:, None] == torch.arange(logits.shape[-1], device=logits.device)
        row_is_forced = (wanted >= 0)[:, None]
        others = torch.where(row_is_forced, logits.clamp(max=CEILING), logits)
        return torch.where(is_forced, FORCED, others)

    def _forced(self, row: _Row, *, with_drafts: bool) -> int | None:
        if row.budget is None:
            return None
        drafts = row.drafts if with_drafts else ()
        return forced_id(row.prompt, row.output, drafts, row.budget, self.markers)


def forced_id(
    prompt: Sequence[int],
    output: Sequence[int],
    drafts: Sequence[int],
    budget: int,
    markers: ThinkingMarkers,
) -> int | None:
    """Return the id that must come next, or None if the model is free.

    A section is the ids since its start marker.  Once it holds `budget` ids the end marker is
    forced, id by id.  After a forced end the request has no budget left, so a later section is
    closed at once; after an end that the model chose, the next section starts a fresh count.
    A start marker inside a section is an id like any other, or a model could renew its own budget.

    Args:
        prompt: may end inside a section; what it thought there counts.
        output: a placeholder at a forced position stands for the forced id.
        drafts: ids that are history for this position.
        budget: most ids of a section, at least 0.
        markers: ids that open and close a section.

    """
    section = _open_section(prompt, markers)
    thinking = section is not None
    # ids since the last marker
    ids = list(prompt) if section is None else list(section)
    # what the prompt thought beyond the budget cannot have been forced
    limit = budget if section is None else max(budget, len(section))
    for known in (*output, *drafts):
        forced = _next_of_end(ids, limit, markers.end) if thinking else None
        ids.append(forced if forced is not None and known == PLACEHOLDER else known)
        if thinking and _ends_with(ids, markers.end):
            was_forced = len(ids) - len(markers.end) >= limit
            budget = 0 if was_forced else budget
            thinking, ids, limit = False, [], budget
        elif not thinking and _ends_with(ids, markers.start):
            thinking, ids = True, []
    return _next_of_end(ids, limit, markers.end) if thinking else None


def _open_section(prompt: Sequence[int], markers: ThinkingMarkers) -> Sequence[int] | None:
    """Return the prompt's ids after its last start marker, or None if an end marker follows."""
    start = _last_place(prompt, markers.start)
    if start is None:
        return None
    end = _last_place(prompt, markers.end)
    return prompt[start + len(markers.start) :] if end is None or end < start else None


def _next_of_end(section: Sequence[int], limit: int, end: Sequence[int]) -> int | None:
    """Return the end marker's next id once the section holds `limit` ids.

    Ids behind the limit are the end marker's, as far as it was emitted.
    """
    if len(section) < limit:
        return None
    beyond = section[max(limit, len(section) - len(end)) :]
    emitted = max(
        size for size in range(len(beyond) + 1) if size == 0 or _ends_with(beyond, end[:size])
    )
    return end[emitted]


def _ends_with(ids: Sequence[int], marker: Sequence[int]) -> bool:
    """Say whether the last ids are the marker's."""
    return tuple(ids[-len(marker) :]) == tuple(marker)


def _last_place(ids: Sequence[int], marker: Sequence[int]) -> int | None:
    """Return where the marker last begins, or None if it does not occur."""
    places = range(len(ids) - len(marker), -1, -1)
    return next((at for at in places if tuple(ids[at : at + len(marker)]) == tuple(marker)), None)
