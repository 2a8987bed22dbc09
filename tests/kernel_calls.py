"""What tests of level-1 kernels hand over and read."""

import torch

from refsampler.backends.protocol import Rows


def rows(batch, *, top_k=None, top_p=None, temperature=None, min_p=None, generators=None):
    def floats(values):
        return None if values is None else torch.tensor(values, dtype=torch.float32)

    generators = generators or {}
    return Rows(
        top_k=None if top_k is None else torch.tensor(top_k, dtype=torch.int32),
        top_p=floats(top_p),
        temperature=floats(temperature),
        min_p=floats(min_p),
        seed=torch.zeros(batch, dtype=torch.int64),
        step=torch.zeros(batch, dtype=torch.int64),
        seeded=torch.tensor([row in generators for row in range(batch)], dtype=torch.bool),
        generators=generators,
    )


def equal_rows(batch, k=None, p=None, seeded=()):
    """Rows that all ask for the same."""
    return rows(
        batch,
        top_k=None if k is None else [k] * batch,
        top_p=None if p is None else [p] * batch,
        generators={row: torch.Generator() for row in seeded},
    )


def processed(drawn):
    assert drawn.processed_logits is not None
    return drawn.processed_logits


def seeded(seed):
    return torch.Generator().manual_seed(seed)
