"""Any backend as an engine, so that it can be served: what it is not, the reference is in its place.

`Capabilities.credit` keeps the level of what is inside: nobody is credited with the reference's
admission, batches and histories.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from refsampler.backends.protocol import BatchSampler, Engine, Kernel, Session, Subject
from refsampler.backends.reference import ReferenceSession
from refsampler.metadata import SamplingMetadata
from refsampler.sampler import Sampler, SamplerOutput

__all__ = ["ServedEngine", "as_engine"]


class ServedEngine:
    """Level 3: the sessions of the reference around a kernel or a sampler."""

    def __init__(self, backend: Kernel | BatchSampler) -> None:
        declared = backend.capabilities
        self.capabilities = replace(declared, level=3, credit=declared.credited)
        self._sample: Callable[[Tensor, SamplingMetadata], SamplerOutput] = (
            Sampler(filter_and_draw=backend.draw, folds=declared.folds)
            if isinstance(backend, Kernel)
            else backend.sample
        )

    def open(self, vocab: int, seed: int) -> Session:
        """Start a session over V = `vocab` ids; `seed` feeds unseeded requests."""
        return ReferenceSession(vocab, seed, self._sample)


def as_engine(backend: Subject) -> Engine:
    """Return the backend if it is an engine, else an engine around it."""
    return backend if isinstance(backend, Engine) else ServedEngine(backend)
