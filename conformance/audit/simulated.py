"""Simulated draws: ids from a right kernel's own law, by inversion, without its noise.

What a run judges by evidence (laws, mixed batches, tails, pairs) then costs what the evidence costs.
The law is the kernel's: its filters in float32 under the reference pipeline, a softmax in float64.
The ids are independent, so that they say nothing about its generator.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from refsampler.backends.protocol import Rows, Subject
from refsampler.conformance.case import Case, CaseId
from refsampler.conformance.checks.base import Asked
from refsampler.conformance.checks.independence import PlannedPairs
from refsampler.conformance.checks.pairs import Pairing
from refsampler.conformance.checks.processes import packed
from refsampler.conformance.evidence.couplings import inverse_cdf
from refsampler.conformance.faults.right import RightKernel
from refsampler.conformance.plan import Plan
from refsampler.conformance.subject import Draw, OpenSubject, derived_seed

__all__ = ["OwnLaws", "SimulatedSubject", "simulated_plan"]


class OwnLaws:
    """The laws that kernels draw from, each worked out once: they do not depend on a run seed."""

    def __init__(self) -> None:
        self._laws: dict[tuple[str, CaseId], Float64[np.ndarray, "rows vocab"]] = {}

    def of(
        self, name: str, kernel: RightKernel, case: Case, case_id: CaseId
    ) -> Float64[np.ndarray, "rows vocab"]:
        """Return the law of every row of a case.

        Args:
            name: of the kernel, which keeps its laws apart.
            kernel: whose filters act.
            case: of random rows.
            case_id: a hash of the case, which takes as long as some of its draws.

        """
        key = (name, case_id)
        if key not in self._laws:
            asked = _Asked(kernel)
            OpenSubject(asked, 0).sample(case, 0, "law")
            self._laws[key] = asked.probs.numpy()
        return self._laws[key]


class _Asked:
    """A kernel that remembers the law of another."""

    def __init__(self, kernel: RightKernel) -> None:
        self.capabilities = kernel.capabilities
        self.probs = torch.empty(0, 0, dtype=torch.float64)
        self._kernel = kernel

    def draw(self, logits: Float[Tensor, "B V"], rows: Rows) -> Int64[Tensor, " B"]:
        """Return the likeliest ids."""
        assert rows.temperature is not None
        kernel, greedy = self._kernel, rows.temperature == 0
        x = kernel.filtered(kernel.scaled(logits.float(), rows, greedy), rows)
        self.probs = kernel.law(torch.softmax(x.double(), dim=-1))
        return self.probs.argmax(dim=-1)


class SimulatedSubject(OpenSubject):
    """A right kernel whose laws, mixed batches and tails are simulated; all else is asked of it.

    Args:
        name: of the kernel; kernels of one law get other ids.
        kernel: that is asked, a `RightKernel`.
        plan: whose evidence is simulated.
        run_seed: of the run.
        laws: kept from run to run.

    Attributes:
        simulated: how many of the ids drawn were.

    """

    def __init__(
        self, name: str, kernel: Subject, plan: Plan, run_seed: int, laws: OwnLaws
    ) -> None:
        super().__init__(kernel, run_seed)
        self.simulated = 0
        self._name, self._laws = name, laws
        drawn = [*(one.case for one in plan.laws), *(one.case for one in plan.sequential.tails)]
        self._one_law = {case.id for case in drawn}
        self._mixed = {f"{one.case.id}/mixed" for one in plan.mixed}

    def sample(self, case: Case, call: int, key: str) -> Draw:
        """Sample as `OpenSubject.sample` does; of a mixed batch, simulate the ids."""
        if key not in self._mixed:
            return super().sample(case, call, key)
        laws = self._own(case)
        uniforms = self._uniforms(case, call, len(laws))
        ids = [inverse_cdf(law, one[None])[0] for law, one in zip(laws, uniforms, strict=True)]
        self.simulated += len(ids)
        return Draw(np.array(ids, dtype=np.int64), None)

    def sample_many(self, case: Case, rows: int, call: int) -> Int64[np.ndarray, " rows"]:
        """Draw as `OpenSubject.sample_many` does; of a planned law or tail, simulate the ids."""
        if case.id not in self._one_law:
            return super().sample_many(case, rows, call)
        self.simulated += rows
        return inverse_cdf(self._own(case)[0], self._uniforms(case, call, rows))

    def pairs(self, one: PlannedPairs) -> Asked:
        """Simulate all streams of a case of equal rows, independent of each other."""
        both = one.pairing not in (Pairing.ROWS, Pairing.CALLS)
        shape = (1 + both, one.calls, one.rows)
        uniforms = self._uniforms(one.case, 0, int(np.prod(shape)))
        self.simulated += one.draws
        ids = inverse_cdf(self._own(one.case)[0], uniforms)
        return Asked(draws=one.draws, ids=packed(ids.reshape(shape)))

    def _own(self, case: Case) -> Float64[np.ndarray, "rows vocab"]:
        assert isinstance(self.backend, RightKernel)
        return self._laws.of(self._name, self.backend, case, case.id)

    def _uniforms(self, case: Case, call: int, count: int) -> Float64[np.ndarray, " count"]:
        seed = derived_seed(self.run_seed, self._name, case.id, "simulated", call)
        return np.random.default_rng(seed).random(count)


def simulated_plan(plan: Plan) -> Plan:
    """Return the plan with the pairs asked of a `SimulatedSubject`, where they can be asked here."""
    pairs = tuple(
        replace(one, check=replace(one.check, ask=partial(_simulate, one)))
        if isinstance(one, PlannedPairs) and not one.pairing.in_processes
        else one
        for one in plan.sequential.pairs
    )
    return replace(plan, sequential=replace(plan.sequential, pairs=pairs))


def _simulate(one: PlannedPairs, subject: OpenSubject, _case: Case) -> Asked:
    assert isinstance(subject, SimulatedSubject)
    return subject.pairs(one)
