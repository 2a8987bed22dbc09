"""Samplers that are right in one process and wrong in two: one mistake each."""

import os
import secrets

import torch
from torch import Tensor

from refsampler.backends.protocol import Capabilities, Feature
from refsampler.conformance.subject import derived_seed
from refsampler.metadata import SamplingMetadata
from refsampler.sampler import SamplerOutput
from tests.broken_streams import Independent, answered


class ConstantSeed(Independent):
    """Every process seeds its own generator with the same constant."""

    def __init__(self):
        self.own = torch.Generator().manual_seed(0)

    def uniforms(self, rows):
        return torch.rand(rows, dtype=torch.float64, generator=self.own)


class PidParity(ConstantSeed):
    """The seed is the last bit of the process id."""

    def __init__(self):
        self.own = torch.Generator().manual_seed(os.getpid() % 2)


class NowAndThen(ConstantSeed):
    """A row in ten takes its noise from a generator that all processes seed alike."""

    def uniforms(self, rows):
        taken = torch.rand(rows, generator=self.own) < 0.1
        return torch.where(taken, super().uniforms(rows), torch.rand(rows, dtype=torch.float64))


class Seeded(Independent):
    """The inverse CDF of a uniform of each row's own generator, and of torch's without one."""

    capabilities = Capabilities("seeded inverse cdf", "1", 2, features=frozenset({Feature.SEED}))

    def sample(self, logits: Tensor, metadata: SamplingMetadata) -> SamplerOutput:
        edges = torch.softmax(logits.double(), dim=-1).cumsum(dim=-1)
        u = self.uniforms(len(logits))
        for row, generator in metadata.generators.items():
            u[row] = torch.rand((), dtype=torch.float64, generator=self.of(generator))
        ids = torch.searchsorted(edges / edges[:, -1:], u[:, None], right=True)[:, 0]
        greedy = torch.zeros(len(logits), dtype=torch.bool)
        if metadata.temperature is not None and not metadata.all_random:
            greedy = metadata.temperature == 0
        return answered(torch.where(greedy, self.largest(logits), ids))

    def of(self, generator: torch.Generator) -> torch.Generator:
        return generator

    def largest(self, logits: Tensor) -> Tensor:
        return logits.argmax(dim=-1)


class TwentyBits(Seeded):
    """Looks at the lowest twenty bits of a seed."""

    def __init__(self):
        self.by_seed = {}

    def of(self, generator):
        seed = generator.initial_seed() % 2**20
        return self.by_seed.setdefault(seed, torch.Generator().manual_seed(seed))


class HashedSeeds(Seeded):
    """Hashes the words of a seed with Python's hash, which has a secret of its own in a process."""

    def __init__(self):
        self.secret = secrets.token_hex()
        self.by_seed = {}

    def of(self, generator):
        seed = generator.initial_seed()
        made = torch.Generator().manual_seed(derived_seed(self.secret, seed))
        return self.by_seed.setdefault(seed, made)


class TiesByChance(Seeded):
    """Takes any of the largest logits, by noise that no seed reaches."""

    def largest(self, logits):
        noise = torch.tensor([[secrets.randbits(24) for _ in one] for one in logits])
        return noise.masked_fill(logits < logits.amax(dim=-1, keepdim=True), -1).argmax(dim=-1)
