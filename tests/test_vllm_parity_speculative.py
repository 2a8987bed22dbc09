"""The verifier against vLLM's, and whether that comparison would see a fault; no vLLM is needed for that."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from refsampler.conformance.case import Case
from refsampler.conformance.designed.build import masses, request
from refsampler.conformance.designed.drafted import Drafted, led, steps_case
from refsampler.conformance.verifying import step_of
from refsampler.metadata import SamplingMetadata
from refsampler.request import PLACEHOLDER
from refsampler.speculative import RejectionSampler
from tests.vllm_parity.drafted import compare, make
from tests.vllm_parity.findings import Finding, Kind

REPO = Path(__file__).resolve().parents[1]
PYTHON = REPO / ".venv-vllm" / "bin" / "python"
TARGET = masses({1: 0.25, 2: 0.25, 3: 0.5})
DRAFT = masses({1: 0.75, 2: 0.25})


@pytest.mark.vllm
@pytest.mark.skipif(not PYTHON.exists(), reason="not run: make vllm-parity sets it up")
def test_twenty_steps_agree_with_vllm() -> None:
    command = [str(PYTHON), "-m", "tests.vllm_parity.speculative", "--batches", "20", "--seed", "7"]
    done = subprocess.run(command, check=False, cwd=REPO, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def emitted(case: Case) -> list[list[int]]:
    step = step_of(case)
    ids = torch.tensor([token for one in step.drafts for token in one])
    metadata = SamplingMetadata.from_requests(step.requests, case.logits.vocab, speculative=True)
    return RejectionSampler()(ids, step.draft_probs, step.logits, metadata).emitted()


def judged(case: Case, real: list[int]) -> Finding:
    (found,) = compare(case, emitted(case), [real])
    return found


def seeded(seed: int) -> Case:
    return steps_case(
        5, [Drafted(request(seed=seed), (1, 2), (TARGET, TARGET, TARGET), (DRAFT, DRAFT))]
    )


def test_the_reference_agrees_with_itself() -> None:
    for case in make(6, 3):
        ids = emitted(case)
        assert {one.kind for one in compare(case, ids, ids)} == {Kind.AGREES}


@pytest.mark.parametrize("seed", range(6))
def test_any_other_id_or_length_is_unexplained(seed: int) -> None:
    case = seeded(seed)
    (right,) = emitted(case)
    others = [[*right[:-1], token] for token in range(5) if token != right[-1]]
    # one draft less accepted, or one more
    others += [[*right[:-2], 3]] if len(right) > 1 else [[1, 3]]
    for real in others:
        found = judged(case, real)
        assert (found.kind, found.clause) == (Kind.UNEXPLAINED, "spec.law"), (right, real)


def test_a_greedy_request_has_one_answer() -> None:
    greedy = Drafted(request(temperature=0.0), (1, 3), led(1, 2, 4))
    case = steps_case(5, [greedy])
    assert judged(case, [1, 2]).kind is Kind.AGREES
    assert judged(case, [1, 3, 4]).kind is Kind.UNEXPLAINED


def test_id_0_of_an_empty_residual_departs() -> None:
    twice = masses({1: 2.0**-19, 3: 1 - 2.0**-20})
    least = masses({1: 2.0**-20, 3: 1 - 2.0**-20})
    found = set()
    for seed in range(8):
        case = steps_case(5, [Drafted(request(seed=seed), (1,), (least, TARGET), (twice,))])
        if len(emitted(case)[0]) == 1:
            found.add((judged(case, [0]).kind, judged(case, [0]).clause))
            assert judged(case, [2]).kind is Kind.UNEXPLAINED
    assert found == {(Kind.DEPARTS, "spec.degenerate")}


def test_min_tokens_at_the_bonus_departs() -> None:
    asked = request(temperature=0.0, min_tokens=1, stop_token_ids=(3,))
    case = steps_case(5, [Drafted(asked, (1,), led(1, 3))])
    assert emitted(case) == [[1, 3]]
    found = judged(case, [1, 0])
    assert (found.kind, found.clause) == (Kind.DEPARTS, "mask.min-tokens")


def test_a_placeholder_s_law_departs() -> None:
    """The target is (1/4, 1/4, 1/2); less the row's law only id 3 is left, which vLLM gives."""
    law = masses({1: 0.5, 2: 0.5})
    found = set()
    for seed in range(8):
        case = steps_case(
            5, [Drafted(request(seed=seed), (PLACEHOLDER,), (TARGET, TARGET), (law,))]
        )
        if emitted(case) != [[3]]:
            assert judged(case, [4]).kind is Kind.UNEXPLAINED
            found.add((judged(case, [3]).kind, judged(case, [3]).clause))
    assert found == {(Kind.DEPARTS, "spec.law")}
