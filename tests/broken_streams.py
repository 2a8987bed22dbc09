"""Samplers of equal rows with right laws and wrong noise, or with wrong tails: one mistake each.

All rows of a call are taken to be alike, so that a call costs one softmax, whatever its rows.
"""

import math
import threading

import numpy as np
import torch
from torch import Tensor

from refsampler.backends.protocol import Capabilities
from refsampler.metadata import SamplingMetadata
from refsampler.sampler import SamplerOutput


def answered(ids: Tensor) -> SamplerOutput:
    valid = torch.ones(len(ids), dtype=torch.bool)
    return SamplerOutput(ids.to(torch.int32)[:, None], None, valid)


class Independent:
    """The inverse CDF of one float64 uniform a row, from torch's default generator."""

    capabilities = Capabilities("inverse cdf", "1", 2)

    def sample(self, logits: Tensor, _metadata: SamplingMetadata) -> SamplerOutput:
        probs = self.law(torch.softmax(logits[0].double(), dim=-1))
        edges = probs.cumsum(dim=-1)
        ids = torch.searchsorted(edges / edges[-1], self.uniforms(len(logits)), right=True)
        return answered(ids)

    def uniforms(self, rows: int) -> Tensor:
        return torch.rand(rows, dtype=torch.float64)

    def law(self, probs: Tensor) -> Tensor:
        return probs


# ---- noise


class OneUniform(Independent):
    """All rows of a call share one uniform."""

    def uniforms(self, rows):
        return torch.rand(1, dtype=torch.float64).repeat(rows)


class Antithetic(Independent):
    """Row 2n + 1 takes 1 - u of row 2n."""

    def uniforms(self, rows):
        u = torch.rand((rows + 1) // 2, dtype=torch.float64)
        return torch.stack([u, 1 - u], dim=1).reshape(-1)[:rows]


class Affine(Independent):
    """Rows walk round the circle in equal steps from a random start."""

    def uniforms(self, rows):
        steps = torch.arange(rows, dtype=torch.float64) * ((math.sqrt(5) - 1) / 2)
        return (torch.rand(1, dtype=torch.float64) + steps) % 1


class Repeats(Independent):
    """A row in fifty copies the row before it."""

    def uniforms(self, rows):
        u = super().uniforms(rows)
        return torch.where(torch.rand(rows) < 0.02, u.roll(1), u)


class Reseeded(Independent):
    """A generator with the same seed in every call."""

    def uniforms(self, rows):
        return torch.rand(rows, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


class SameSeedAsTorch(Independent):
    """A generator of its own with the seed of torch's: later draws of torch's are the same."""

    def __init__(self):
        self.own, self.seed = torch.Generator(), -1

    def uniforms(self, rows):
        if self.seed != torch.default_generator.initial_seed():
            self.seed = torch.default_generator.initial_seed()
            self.own.manual_seed(self.seed)
        return torch.rand(rows, generator=self.own).double()


class NotAdvanced(Independent):
    """Draws from a copy of torch's generator."""

    def uniforms(self, rows):
        copy = torch.Generator()
        copy.set_state(torch.default_generator.get_state())
        return torch.rand(rows, generator=copy).double()


class ThreadsAlike(Independent):
    """A generator for each thread, all with one seed."""

    def __init__(self):
        self.here = threading.local()

    def uniforms(self, rows):
        if not hasattr(self.here, "own"):
            self.here.own = torch.Generator().manual_seed(3)
        return torch.rand(rows, dtype=torch.float64, generator=self.here.own)


# ---- tails


class TailDropped(Independent):
    """Never draws an id of probability below 2e-6."""

    def law(self, probs):
        return torch.where(probs < 2e-6, 0.0, probs)


class TailTripled(Independent):
    """Draws ids below 2e-6 three times too often."""

    def law(self, probs):
        return torch.where(probs < 2e-6, 3 * probs, probs)


class Coarse(Independent):
    """Gives the mass of sixteen very unlikely ids to the first of them."""

    def law(self, probs):
        rare = probs < 2e-5
        first = torch.arange(len(probs)) % 16 == 0
        weight = torch.where(rare & ~first, 0.0, probs)
        return torch.where(rare & first, probs[rare].sum() / (rare & first).sum(), weight)


class Race24(Independent):
    """A race with exponentials -ln(k / 2^24), k = 1..2^24, of which the last is raised to 2^-24.

    So torch draws float32 exponentials on CUDA.  Given the noise q of the likely id, an id of the
    sea beats it if its own is below r q, where r is the ratio of their probabilities; so a call
    needs two numbers a row in place of 1,024.
    """

    capabilities = Capabilities("race on 24 bits", "1", 2, floor=1e-8)

    def sample(self, logits, _metadata):
        rows, vocab = logits.shape
        probs = torch.softmax(logits[0].double(), dim=-1)
        head = int(probs.argmax())
        grid = 2.0**24
        place = (torch.rand(rows, dtype=torch.float64) * grid).floor() + 1
        noise = -(place / grid).log().clamp(max=-1 / grid)
        below = share_below(probs.min() / probs.max() * noise, 24)
        some = -torch.expm1((vocab - 1) * torch.log1p(-below))
        sea = torch.rand(rows, dtype=torch.float64) < some
        other = torch.randint(vocab - 1, (rows,))
        return answered(torch.where(sea, torch.where(other >= head, other + 1, other), head))


def share_below(thresholds: Tensor, bits: int) -> Tensor:
    """The share of the race's exponentials that are below each threshold, in closed form."""
    grid = 2.0**bits
    all_but_last = ((-grid * torch.expm1(-thresholds)).ceil() - 1).clamp(min=0)
    return (all_but_last + (thresholds > 1 / grid)) / grid


def counted_below(threshold: float, bits: int) -> float:
    """The same by counting."""
    noise = -np.log(np.arange(1, 2**bits + 1) / 2**bits)
    return float((np.maximum(noise, 2.0**-bits) < threshold).mean())
