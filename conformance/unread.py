"""Unread: calls back to back, whose results are read once all of them have been made.

So an engine reads that starts a step before it has taken the ids of the last one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64

from refsampler.backends.protocol import BatchSampler
from refsampler.conformance.answers import read_output
from refsampler.conformance.case import Case
from refsampler.conformance.sessions import asking, opened
from refsampler.conformance.subject import OpenSubject, seeded
from refsampler.metadata import SamplingMetadata
from refsampler.sampler import SamplerOutput

__all__ = ["sample_steps"]

_Ids = Int64[np.ndarray, " rows"]


def sample_steps(
    subject: OpenSubject,
    steps: Sequence[Case],
    names: Sequence[Sequence[int]],
    seed: int,
    known: Sequence[_Ids] | None = None,
) -> tuple[_Ids, ...]:
    """Sample batches of seeded rows one after the other.

    Args:
        subject: a sampler, or an engine, which keeps one session.
        steps: batches of one vocabulary.
        names: of the rows of each; of an engine the ids of its requests, the first step having all.
        seed: of the default generator, and of the session.
        known: ids of these steps, as read before; with them nothing is read until all calls are made.
            None reads each step at once.

    Returns:
        The ids of each step, none where they cannot be read.

    Raises:
        SubjectError: the backend raised.

    """
    device = subject.capabilities.device
    shapes = [(len(step.requests), step.logits.vocab) for step in steps]
    found: list[_Ids] = []
    outputs: list[SamplerOutput] = []

    def took(output: SamplerOutput) -> _Ids:
        """Keep an output, and return its ids, read now or before."""
        place = len(outputs)
        outputs.append(output)
        if known is not None:
            return known[place]
        found.append(read_output(output, *shapes[place]).ids)
        return found[place]

    def all_read() -> tuple[_Ids, ...]:
        if known is None:
            return tuple(found)
        pairs = zip(outputs, shapes, strict=True)
        return tuple(read_output(output, *shape).ids for output, shape in pairs)

    logits = [step.build_logits(device) for step in steps]
    if subject.capabilities.level == 3:
        with opened(subject, steps[0].logits.vocab, seed) as session:
            with asking(), seeded(seed, device):
                for name, request in zip(names[0], steps[0].requests, strict=True):
                    session.add(name, request)
                for x, ids in zip(logits, names, strict=True):
                    tokens = took(session.sample(ids, x))
                    session.accept(ids, [[token] for token in tokens.tolist()])
            return all_read()
    assert isinstance(subject.backend, BatchSampler)
    batches = [
        SamplingMetadata.from_requests(step.requests, step.logits.vocab, device=device)
        for step in steps
    ]
    with asking(), seeded(seed, device):
        for x, metadata in zip(logits, batches, strict=True):
            took(subject.backend.sample(x, metadata))
    return all_read()
