"""Positions: the places of a step with drafts, each seen as a row of its own (clause `spec.history`).

Position j of a request stands behind its output and its first j drafts; the last one, behind all of
them, is the place of the bonus id.  As a row with that history it obeys every clause of plain
decoding, which is all that verification has to know about masks, penalties and budgets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from refsampler.metadata import SamplingMetadata

__all__ = ["Position", "all_positions", "at_positions", "bonus_positions", "drafts_of"]

_Value = TypeVar("_Value")


class Position(NamedTuple):
    """The place in request `row` behind its output and `drafts` of its drafts."""

    row: int
    drafts: int


def drafts_of(metadata: SamplingMetadata) -> Sequence[Sequence[int]]:
    """Return the drafts of every request, none where nothing is scheduled."""
    return metadata.spec_token_ids or [()] * len(metadata.repetition_penalties)


def all_positions(drafts: Sequence[Sequence[int]]) -> tuple[Position, ...]:
    """Return the places that a verifier gets logits for: of each request its drafts', then the bonus'."""
    return tuple(
        Position(row, before) for row, ids in enumerate(drafts) for before in range(len(ids) + 1)
    )


def bonus_positions(drafts: Sequence[Sequence[int]]) -> tuple[Position, ...]:
    """Return the place behind all drafts of each request."""
    return tuple(Position(row, len(ids)) for row, ids in enumerate(drafts))


def at_positions(metadata: SamplingMetadata, positions: Sequence[Position]) -> SamplingMetadata:
    """Return the batch with one row a position; the drafts before it are output like any other.

    Processors other than min tokens keep their rows, so they need one position a request in order;
    with speculative decoding there are none (clause `spec.processors`).
    """
    rows = [position.row for position in positions]
    outputs, drafts = metadata.output_token_ids, drafts_of(metadata)
    histories = [(*outputs[row], *drafts[row][:before]) for row, before in positions]
    device = metadata.repetition_penalties.device
    places = torch.tensor(rows, dtype=torch.int64, device=device)

    def of(field: Tensor | None) -> Tensor | None:
        return None if field is None else field[places]

    thinking = metadata.thinking_budget_state_holder
    listed = metadata.logprob_token_ids or {}
    words = metadata.bad_words_token_ids
    return replace(
        metadata,
        temperature=of(metadata.temperature),
        top_p=of(metadata.top_p),
        top_k=of(metadata.top_k),
        generators=_by_place(metadata.generators, rows),
        prompt_token_ids=of(metadata.prompt_token_ids),
        frequency_penalties=metadata.frequency_penalties[places],
        presence_penalties=metadata.presence_penalties[places],
        repetition_penalties=metadata.repetition_penalties[places],
        output_token_ids=histories,
        allowed_token_ids_mask=of(metadata.allowed_token_ids_mask),
        bad_words_token_ids=_by_place(words, rows),
        logitsprocs=metadata.logitsprocs.at_rows(rows, histories),
        logprob_token_ids=_by_place(listed, rows) or None,
        spec_token_ids=None,
        thinking_budget_state_holder=None
        if thinking is None
        else thinking.at_rows(rows, histories),
        steps=[metadata.steps[row] + before for row, before in positions],
    )


def _by_place(by_row: Mapping[int, _Value], rows: Sequence[int]) -> Mapping[int, _Value]:
    """Return what some requests have, for each of their places."""
    return {place: by_row[row] for place, row in enumerate(rows) if row in by_row}
