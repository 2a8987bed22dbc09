"""Noise of choice: generators that give the words they are asked for, and what they are for."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from refsampler.backends.native import NativeKernel
from refsampler.backends.protocol import Subject
from refsampler.conformance.checks.ends import CHECKS
from refsampler.conformance.faults.registry import fault
from refsampler.conformance.faults.right import RightKernel, RightSampler
from refsampler.conformance.noise import MOST_WORDS, generator_giving
from refsampler.conformance.subject import OpenSubject

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


@pytest.mark.parametrize("count", [0, MOST_WORDS + 1])
def test_as_many_words_as_the_state_holds(count):
    with pytest.raises(ValueError, match=f"words: {count} are refused: allowed are 1 to 623"):
        generator_giving(np.zeros(count, np.uint32), 1)


def found(subject: Subject) -> list[str]:
    opened = OpenSubject(subject, 5)
    assert GIVEN.ask is not None
    return [
        str(finding.clause)
        for case in GIVEN.cases(subject.capabilities, 5)
        for finding in GIVEN.ask(opened, case).findings
    ]


@pytest.mark.parametrize("name", ["B126", "B132", "B143", "B155", "B197"])
def test_dead_ids_of_noise_at_its_ends_are_seen(name):
    make = fault(name).make
    assert make is not None
    assert {*found(make())} == {"draw.support"}


@pytest.mark.parametrize("right", [NativeKernel, RightKernel, RightSampler])
def test_right_noise_gives_no_dead_id_at_its_ends(right):
    assert found(right()) == []
