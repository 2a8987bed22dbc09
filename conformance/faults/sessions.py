"""A right session with a hook, for faults of engines whose parameters or histories go astray."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from refsampler.backends.reference import ReferenceSession
from refsampler.batch import PersistentBatch
from refsampler.metadata import SamplingMetadata

__all__ = ["RightSession"]

_Change = Callable[[SamplingMetadata], SamplingMetadata]
_MOST_REQUESTS = 2**16


class RightSession(ReferenceSession):
    """The reference session; `changed` is what a wrong one overrides.

    Attributes:
        accepted: request id -> how many tokens its last step produced.

    """

    def __init__(self, vocab: int, seed: int) -> None:
        super().__init__(vocab, seed)
        self._batch = _Committed(vocab, self.changed)
        self.accepted: dict[int, int] = {}

    def accept(self, ids: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        """Append tokens to the requests' outputs."""
        super().accept(ids, tokens)
        self.accepted |= {one: len(some) for one, some in zip(ids, tokens, strict=True)}

    def remove(self, id: int) -> None:  # noqa: A002 - the protocol's name
        """Forget a request."""
        super().remove(id)
        self.accepted.pop(id, None)

    def changed(self, metadata: SamplingMetadata) -> SamplingMetadata:
        """Return the metadata that is sampled with; `rows` are its requests."""
        return metadata

    @property
    def rows(self) -> tuple[int, ...]:
        """The request of each row."""
        return tuple(one for one in self._batch.rows if one is not None)


class _Committed(PersistentBatch):
    """A batch whose metadata is changed before anybody sees it."""

    def __init__(self, vocab: int, change: _Change) -> None:
        super().__init__(vocab, max_num_reqs=_MOST_REQUESTS)
        self._change = change

    def commit(self) -> SamplingMetadata:
        return self._change(super().commit())
