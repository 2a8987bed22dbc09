"""The reference against the real vLLM sampler, and whether that comparison would see a fault."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from refsampler.params import SamplingParams
from refsampler.request import Request
from tests.vllm_parity import reference
from tests.vllm_parity.compare import compare
from tests.vllm_parity.findings import Finding, Kind
from tests.vllm_parity.sides import LogprobsMode, Side

REPO = Path(__file__).resolve().parents[1]
PYTHON = REPO / ".venv-vllm" / "bin" / "python"

LOGITS = torch.tensor(
    [[1.0, 3.0, 2.0, -1.0, 0.0, -4.0], [0.5, 2.0, 2.5, -1.0, 3.0, -4.0]], dtype=torch.bfloat16
)
REQUESTS = (
    Request(SamplingParams(temperature=0.0, logprobs=2, repetition_penalty=1.1), (1,), (2, 2)),
    Request(SamplingParams(temperature=0.5, top_k=3, seed=5), (0,), (4,)),
)
MODE: LogprobsMode = "processed_logprobs"


@pytest.mark.vllm
@pytest.mark.skipif(not PYTHON.exists(), reason="not run: make vllm-parity sets it up")
def test_fifty_batches_agree_with_vllm() -> None:
    command = [str(PYTHON), "-m", "tests.vllm_parity.run", "--batches", "50", "--seed", "7"]
    done = subprocess.run(command, check=False, cwd=REPO, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def _reference() -> Side:
    return reference.run(LOGITS, REQUESTS, MODE)


def _judge(real: Side) -> dict[str, Finding]:
    """Return by check what does not agree when `real` poses as vLLM."""
    found = compare(LOGITS, REQUESTS, MODE, _reference(), real)
    return {one.check: one for one in found if one.kind is not Kind.AGREES}


def test_the_reference_agrees_with_itself_everywhere() -> None:
    assert _judge(_reference()) == {}


def _at(tensor: torch.Tensor, row: int, column: int, value: float) -> torch.Tensor:
    changed = tensor.clone()
    changed[row, column] = value
    return changed


def _other_rank(side: Side) -> Side:
    assert side.gathered is not None
    return replace(side, gathered=side.gathered._replace(ranks=side.gathered.ranks + 1))


# Row 1 keeps ids 1, 2 and 4. The seed draws one of them; the other two are possible, not right.
@pytest.mark.parametrize(
    ("check", "fault"),
    [
        ("shape and dtype of ids", lambda s: replace(s, ids=s.ids.long())),
        ("greedy id", lambda s: replace(s, greedy_ids=_at(s.greedy_ids, 1, 0, 2))),
        ("greedy id", lambda s: replace(s, ids=_at(s.ids, 0, 0, 2))),
        (
            "logits after step 6, equal",
            lambda s: replace(s, before_filters=_at(s.before_filters, 0, 5, -4.0000005)),
        ),
        (
            "logits after step 6, equal",
            lambda s: replace(s, before_filters=_at(s.before_filters, 0, 1, 2.7273)),
        ),
        (
            "kept set, core <= both <= hull",
            lambda s: replace(s, processed=_at(s.processed, 1, 1, -torch.inf)),
        ),
        (
            "kept set, core <= both <= hull",
            lambda s: replace(s, processed=_at(s.processed, 1, 0, 1.0)),
        ),
        (
            "logits of ids that both kept",
            lambda s: replace(s, processed=_at(s.processed, 1, 2, 5.000001)),
        ),
        (
            "seeded id, float64 race",
            lambda s: replace(s, ids_float64=_at(s.ids_float64, 1, 0, _another_kept(s))),
        ),
        ("seeded id, float64 race", lambda s: replace(s, ids_float64=_at(s.ids_float64, 1, 0, 5))),
        (
            "whole row of processed_logprobs",
            lambda s: replace(s, whole=_at(s.whole, 1, 4, float(s.whole[1, 4]) + 1e-4)),
        ),
        ("gathered ids, values and rank", _other_rank),
        ("logprobs present or absent", lambda s: replace(s, gathered=None)),
    ],
)
def test_a_fault_is_unexplained(check: str, fault: Callable[[Side], Side]) -> None:
    found = _judge(fault(_reference()))
    assert found[check].kind is Kind.UNEXPLAINED


def _another_kept(side: Side) -> int:
    return next(one for one in (1, 2, 4) if one != int(side.ids_float64[1, 0]))


def test_the_last_bit_of_a_repetition_penalty_departs() -> None:
    # 3 / 1.1 in float32; vLLM has 3 * (1 / 1.1), one unit in the last place below
    side = _reference()
    quotient = side.before_filters[0, 1]
    assert quotient.item() == pytest.approx(2.7272727, abs=1e-7)
    below = torch.nextafter(quotient, torch.tensor(0.0)).item()
    found = _judge(replace(side, before_filters=_at(side.before_filters, 0, 1, below)))
    finding = found["logits after step 6, equal"]
    assert (finding.kind, finding.clause) == (Kind.DEPARTS, "penalty.repetition")


def test_float32_logits_that_vllm_overwrites_depart() -> None:
    logits = LOGITS.float()
    ours = reference.run(logits, REQUESTS, MODE)
    found = compare(logits, REQUESTS, MODE, ours, replace(ours, mutated=True))
    different = [one for one in found if one.kind is not Kind.AGREES]
    assert [(one.kind, one.clause) for one in different] == [(Kind.DEPARTS, "input.untouched")]


def test_one_of_two_equal_logits_at_the_boundary_is_open() -> None:
    # softmax of four equal logits is 1/4 exactly: p = 1/2 keeps two of them, no matter which
    logits = torch.zeros(1, 4)
    requests = (Request(SamplingParams(top_p=0.5)),)
    ours = reference.run(logits, requests, "raw_logits")
    assert ours.processed.isfinite().tolist() == [[True, True, False, False]]
    for kept, kind in (([2, 3], Kind.OPEN), ([1, 2, 3], Kind.UNEXPLAINED), ([3], Kind.UNEXPLAINED)):
        processed = torch.full((1, 4), -torch.inf)
        processed[0, kept] = 0.0
        real = replace(ours, processed=processed, ids=torch.tensor([[3]], dtype=torch.int32))
        found = compare(logits, requests, "raw_logits", ours, real)
        judged = next(one for one in found if one.check == "kept set, core <= both <= hull")
        assert judged.kind is kind, kept
