"""Noise of choice: generators that give the words they are asked for, and what they are for."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from refsampler.backends.native import NativeKernel
from refsampler.backends.protocol import Subject
from refsampler.conformance.checks.base import Check
from refsampler.conformance.checks.ends import _ENDS, CHECKS
from refsampler.conformance.checks.sums import CHECKS as SUMS
from refsampler.conformance.faults.registry import fault
from refsampler.conformance.faults.right import RightKernel, RightSampler
from refsampler.conformance.faults.rowwise import RowwiseKernel
from refsampler.conformance.noise import MOST_WORDS, generator_giving
from refsampler.conformance.subject import OpenSubject

SUMS_GIVEN = next(one for one in SUMS if one.name == "running-sums-given")
GIVEN = next(one for one in CHECKS if one.name == "noise-ends-given")


def test_the_words_come_first_and_others_after_them():
    words = np.array([0, 1, 0xFFFFFFFF, 0x12345678, 0x00FFFFFF], np.uint32)
    generator = generator_giving(words, seed=1)
    # float32 uniforms are the lower 24 bits of a word
    expected = [0.0, 2.0**-24, 1 - 2.0**-24, 0x345678 * 2.0**-24, 1 - 2.0**-24]
    assert torch.rand(5, generator=generator).tolist() == expected
    later = [torch.rand(4, generator=one) for one in (generator, generator_giving(words, seed=2))]
    assert not torch.equal(*later)


def test_a_double_takes_two_words():
    words = np.array([0, 1, 2**32 - 1, 2**32 - 1], np.uint32)
    uniform = torch.rand(2, dtype=torch.float64, generator=generator_giving(words, 1))
    assert uniform.tolist() == [2.0**-53, 1 - 2.0**-53]


def test_every_kind_of_uniform_comes_within_2_to_the_minus_32_of_its_ends():
    for dtype, ends in (
        (torch.float32, (0.0, 1 - 2.0**-24)),
        (torch.float64, (2**-32, 1 - 2**-32)),
    ):
        seen = {
            float(one)
            for pair in _ENDS
            for one in torch.rand(
                2,
                dtype=dtype,
                generator=generator_giving(np.resize(np.array(pair, np.uint32), 4), 1),
            )
        }
        assert {*ends} <= seen


@pytest.mark.parametrize("count", [0, MOST_WORDS + 1])
def test_as_many_words_as_the_state_holds(count):
    with pytest.raises(ValueError, match=f"words: {count} are refused: allowed are 1 to 623"):
        generator_giving(np.zeros(count, np.uint32), 1)


def found(subject: Subject, check: Check = GIVEN) -> list[str]:
    opened = OpenSubject(subject, 5)
    assert check.ask is not None
    return [
        str(finding.clause)
        for case in check.cases(subject.capabilities, 5)
        for finding in check.ask(opened, case).findings
    ]


@pytest.mark.parametrize("name", ["B126", "B132", "B143", "B150", "B155", "B197"])
def test_dead_ids_of_noise_at_its_ends_are_seen(name):
    make = fault(name).make
    assert make is not None
    assert {*found(make())} == {"draw.support"}


@pytest.mark.parametrize("right", [NativeKernel, RightKernel, RightSampler])
def test_right_noise_gives_no_dead_id_at_its_ends(right):
    assert found(right()) == []


class _Scan(RowwiseKernel):
    """The inverse CDF of float32 sums, of a uniform of 24 or 53 bits, or of what it leaves of 1."""

    def __init__(self, bits: int, *, mirrored: bool, in_order: bool = False) -> None:
        self.dtype = torch.float32 if bits == 24 else torch.float64
        self.mirrored, self.in_order = mirrored, in_order

    def edges(self, x):
        probs = torch.softmax(x, dim=-1)
        if self.in_order:
            return probs.cumsum(dim=-1)
        # halves of lanes are added up apart, then joined: an id without mass may end above the last
        sums, reach = probs, 1
        while reach < probs.shape[-1]:
            sums = sums + torch.nn.functional.pad(sums[:, :-reach], (reach, 0))
            reach *= 2
        return sums.flip(-1).cummin(dim=-1).values.flip(-1)

    def uniforms(self, count, rows):
        u = torch.stack(
            [torch.rand((), dtype=self.dtype, generator=rows.generators[i]) for i in range(count)]
        )
        return 1 - u if self.mirrored else u

    def crossed(self, edges, uniform):
        return torch.searchsorted(edges, uniform.float(), right=True).clamp(max=edges.shape[-1] - 1)


@pytest.mark.parametrize("bits", [24, 53])
@pytest.mark.parametrize("mirrored", [False, True])
def test_sums_that_step_back_are_seen_by_the_uniforms_that_show_it(bits, mirrored):
    assert {*found(_Scan(bits, mirrored=mirrored), SUMS_GIVEN)} == {"draw.support"}
    assert found(_Scan(bits, mirrored=mirrored, in_order=True), SUMS_GIVEN) == []


@pytest.mark.parametrize("right", [NativeKernel, RightKernel, RightSampler, RowwiseKernel])
def test_right_sums_give_no_dead_id_at_their_steps(right):
    assert found(right(), SUMS_GIVEN) == []
