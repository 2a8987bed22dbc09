"""Penalties against numbers worked by hand."""

import torch

from refsampler.penalties import apply_penalties, count_tokens, frequency, presence, repetition

CPU = torch.device("cpu")
INF = float("inf")


def floats(*values):
    return torch.tensor(values, dtype=torch.float32)


def test_the_worked_row_of_all_three_penalties():
    # x = [4,-4,4,0,4,-inf], prompt {0,1}, output [2,2,3], r = 2, f = .5, s = .25
    logits = floats(4, -4, 4, 0, 4, -INF)[None]
    result = apply_penalties(
        logits,
        count_tokens([[0, 1]], 6, CPU),
        count_tokens([[2, 2, 3]], 6, CPU),
        floats(2),
        floats(0.5),
        floats(0.25),
    )
    assert result[0].tolist() == [2, -8, 0.75, -0.75, 4, -INF]


def test_repetition_acts_once_per_id_and_keeps_zero():
    counts = torch.tensor([[3, 1, 1, 0]])
    assert repetition(floats(6, 0, -3, 6)[None], counts, floats(3))[0].tolist() == [2, 0, -9, 6]


def test_frequency_counts_and_presence_does_not():
    counts = torch.tensor([[4, 1, 0]])
    zeros = torch.zeros(1, 3)
    assert frequency(zeros, counts, floats(0.5))[0].tolist() == [-2, -0.5, 0]
    assert presence(zeros, counts, floats(0.5))[0].tolist() == [-0.5, -0.5, 0]


def test_negative_penalties_raise_the_logits_of_what_occurred():
    counts = torch.tensor([[2, 0]])
    assert frequency(torch.zeros(1, 2), counts, floats(-1))[0].tolist() == [2, 0]


def test_a_forbidden_id_stays_forbidden():
    counts = torch.tensor([[1]])
    logits = floats(-INF)[None]
    for penalise in (repetition, frequency, presence):
        assert penalise(logits, counts, floats(1.5)).item() == -INF


def test_padding_and_placeholders_are_not_history():
    # V = 3: the id 3 pads prompts, -1 is an output position that is not known yet
    counts = count_tokens([[0, 3, 3], [-1, 2, 2], []], 3, CPU)
    assert counts.tolist() == [[1, 0, 0], [0, 0, 2], [0, 0, 0]]


def test_rows_do_not_leak_into_each_other():
    logits = torch.zeros(2, 3)
    counts = count_tokens([[1], []], 3, CPU)
    result = presence(logits, counts, floats(1, 1))
    assert result.tolist() == [[0, -1, 0], [0, 0, 0]]
