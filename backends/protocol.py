"""The adapter protocol: what a backend author writes, and what it declares.

Three levels, the smallest that fits is the right one: a `Kernel` filters and draws, a
`BatchSampler` samples a batch, an `Engine` serves requests that enter and leave.  A clause is
credited to the lowest level that owns it; below that level it is INHERITED, never PASS.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from refsampler.drafts import Proposed
from refsampler.draw import Drawn, Fold, Rows
from refsampler.metadata import SamplingMetadata
from refsampler.request import Request
from refsampler.sampler import SamplerOutput
from refsampler.semantics import Semantics
from refsampler.speculative import Verified

__all__ = [
    "LARGEST_DELTA",
    "LARGEST_FLOOR",
    "BatchSampler",
    "Capabilities",
    "DType",
    "Drafter",
    "Drawn",
    "Engine",
    "Feature",
    "Fold",
    "Kernel",
    "Proposed",
    "Rows",
    "Session",
    "SpeculativeSession",
    "Subject",
    "Verified",
    "Verifier",
]

LARGEST_DELTA = 2e-3
"""Largest total variation distance that a backend may declare as its own (`draw.law`)."""
LARGEST_FLOOR = 1e-5
"""Largest probability below which a backend may leave ids to the tail clause (`draw.law`)."""


class DType(StrEnum):
    """Dtypes of logits that a backend accepts."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"

    @property
    def torch(self) -> torch.dtype:
        """The torch dtype of that name."""
        return {
            DType.FLOAT32: torch.float32,
            DType.BFLOAT16: torch.bfloat16,
            DType.FLOAT16: torch.float16,
        }[self]


class Feature(StrEnum):
    """What a backend can do beyond drawing; declared, then verified."""

    SEED = "seed"
    BITWISE = "bitwise"
    GRAPH = "graph"
    IN_PLACE = "in_place"
    NOISE = "noise"
    PROCESSED = "processed"
    SAME_PATH = "same_path"
    PENALTIES = "penalties"
    MASKS = "masks"
    LOGPROBS = "logprobs"
    THINKING = "thinking"
    SPECULATIVE = "speculative"
    DRAFT = "draft"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend declares of itself; every declaration is tested.

    Attributes:
        name: as shown in reports.
        version: of the backend, not of refsampler.
        level: 1 filter and draw, 2 sampler, 3 engine.
        device: where tensors live, a torch device string.
        semantics: the law it claims.
        by_path: semantics of paths that differ, by the name of the path.
        delta: largest total variation distance from the law, at most `LARGEST_DELTA`.
        floor: probability above which `draw.law` speaks, at most `LARGEST_FLOOR`.
        dtypes: dtypes of logits.
        features: what else it can do.
        folds: level 1: steps it takes over beside top-k and top-p.
        thresholds: batch sizes at which it changes the path.
        max_elements: most logits in one call, None if only memory limits it.
        credit: highest level whose clauses it answers for, where it is called at a higher one and
            somebody else's code does the rest; None is `level`.

    Raises:
        ValueError: delta or floor is larger than the contract admits.

    """

    name: str
    version: str
    level: Literal[1, 2, 3]
    device: str = "cpu"
    semantics: Semantics = field(default_factory=Semantics)
    by_path: Mapping[str, Semantics] = field(default_factory=dict)
    delta: float = 1e-4
    floor: float = 1e-6
    dtypes: frozenset[DType] = frozenset({DType.FLOAT32})
    features: frozenset[Feature] = frozenset()
    folds: frozenset[Fold] = frozenset({Fold.TOP_K, Fold.TOP_P})
    thresholds: tuple[int, ...] = ()
    max_elements: int | None = None
    credit: Literal[1, 2, 3] | None = None

    @property
    def credited(self) -> Literal[1, 2, 3]:
        """The highest level whose clauses are the backend's own."""
        return self.level if self.credit is None else self.credit

    def __post_init__(self) -> None:
        """Refuse declarations that would make the gate blind."""
        if self.level not in (1, 2, 3):
            msg = f"level = {self.level!r} is refused: allowed are 1, 2, 3"
            raise ValueError(msg)
        for name, value, largest in (
            ("delta", self.delta, LARGEST_DELTA),
            ("floor", self.floor, LARGEST_FLOOR),
        ):
            if not 0 < value <= largest:
                msg = f"{name} = {value!r} is refused: allowed is above 0, at most {largest}"
                raise ValueError(msg)


@runtime_checkable
class Kernel(Protocol):
    """Level 1: filter and draw; the reference pipeline does the rest."""

    capabilities: Capabilities

    def draw(self, logits: Tensor, rows: Rows) -> Tensor | Drawn:
        """Return ids [B] (int32 or int64), optionally with the processed logits [B, V]."""


@runtime_checkable
class BatchSampler(Protocol):
    """Level 2: a whole sampler."""

    capabilities: Capabilities

    def sample(self, logits: Tensor, metadata: SamplingMetadata) -> SamplerOutput:
        """Return int32 ids [num_tokens, 1] and logprobs, which later calls leave as they are."""


@runtime_checkable
class Verifier(Protocol):
    """Level 2, feature `speculative`: verifies drafts that somebody proposed."""

    capabilities: Capabilities

    def verify(
        self,
        draft_ids: Tensor,
        draft_probs: Tensor | None,
        logits: Tensor,
        metadata: SamplingMetadata,
    ) -> Verified:
        """Return the ids that a step emits, int32 [requests, most drafts + 1], -1 behind them.

        `draft_ids` [drafts] are those of `metadata.spec_token_ids` in one row, `draft_probs`
        [drafts, V] the laws that they were drawn from, None if each was certain; `logits` has for
        each request in turn one row for each of its drafts and its bonus row.
        """


@runtime_checkable
class Drafter(Protocol):
    """Level 2, feature `draft`: proposes too, from a draft model's logits."""

    capabilities: Capabilities

    def draft(self, logits: Tensor, metadata: SamplingMetadata) -> Proposed:
        """Return one draft of each request, int [requests], and their laws [requests, V]."""


@runtime_checkable
class Session(Protocol):
    """An engine's running batch; the order of `ids` is the row order."""

    def add(self, id: int, request: Request) -> None:  # noqa: A002 - the protocol's name
        """Admit a request, or refuse it with an error that names field, value and range."""

    def remove(self, id: int) -> None:  # noqa: A002 - the protocol's name
        """Forget a request."""

    def sample(self, ids: Sequence[int], logits: Tensor) -> SamplerOutput:
        """Sample one id for each of `ids`; logits [len(ids), V].

        Later calls leave the result as it is.
        """

    def accept(self, ids: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        """Append tokens to the requests' outputs (teacher forcing, accepted drafts)."""

    def close(self) -> None:
        """Give back what the session holds."""


@runtime_checkable
class SpeculativeSession(Session, Protocol):
    """A session of an engine with the feature `speculative`; `draft` only with that of its name."""

    def draft(
        self, ids: Sequence[int], drafts: Sequence[Sequence[int]], logits: Tensor
    ) -> Proposed:
        """Propose one id more for each of `ids`, behind the drafts that it has already."""

    def verify(
        self,
        ids: Sequence[int],
        drafts: Sequence[Sequence[int]],
        draft_probs: Tensor | None,
        logits: Tensor,
    ) -> Verified:
        """Verify drafts as a `Verifier` does; nothing is accepted before `accept`."""


@runtime_checkable
class Engine(Protocol):
    """Level 3: requests, never metadata; also what the wire speaks."""

    capabilities: Capabilities

    def open(self, vocab: int, seed: int) -> Session:
        """Start a session over V = `vocab` ids; `seed` feeds unseeded requests."""


Subject = Kernel | BatchSampler | Engine
