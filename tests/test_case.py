"""Cases: JSON round trip, stable ids, the same bits everywhere."""

import hashlib
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from refsampler.backends.protocol import DType
from refsampler.conformance.case import Case, Layout, decode_case, encode_case, lay_out
from refsampler.conformance.logits import LogitsRecipe, RowRecipe, hashed
from refsampler.params import SamplingParams
from refsampler.request import Request, ThinkingMarkers

INF = float("inf")

CASE = Case(
    logits=LogitsRecipe(
        vocab=9,
        rows=(
            RowRecipe(base=-INF, ids=(3, 8), values=(1.5, 0.0)),
            RowRecipe(shape="bell", seed=5, scale=0.5, ids=(0,), values=(math.nan,)),
        ),
    ),
    requests=(
        Request(SamplingParams(temperature=0, logit_bias=((1, -INF), (2, 0.5)))),
        Request(SamplingParams(top_p=0.9, seed=3), prompt=(0, 1), output=(2,)),
    ),
    dtype=DType.BFLOAT16,
    layout=Layout.STRIDED,
    thinking=ThinkingMarkers((1,), (2, 3)),
)


def test_round_trip_keeps_the_id():
    document = encode_case(CASE)
    again = decode_case(document)
    assert encode_case(again) == document
    assert again.id == CASE.id
    assert again.requests == CASE.requests
    assert math.isnan(again.logits.rows[1].values[0])


def test_equal_numbers_have_one_spelling():
    one = Case(LogitsRecipe(1, (RowRecipe(base=1),)), (Request(SamplingParams(temperature=1)),))
    other = Case(LogitsRecipe(1, (RowRecipe(base=1.0),)), (Request(SamplingParams()),))
    assert one.id == other.id


def test_the_id_of_a_case_never_changes():
    case = Case(
        LogitsRecipe(4, (RowRecipe(ids=(2,), values=(0.25,)),)),
        (Request(SamplingParams(temperature=0.5, top_k=2), output=(1,)),),
    )
    assert encode_case(case) == (
        b'{"logits":{"rows":[{"ids":[2],"values":[0.25]}],"vocab":4},'
        b'"requests":[{"output":[1],"params":{"temperature":0.5,"top_k":2}}]}'
    )
    assert case.id == hashlib.sha256(encode_case(case)).hexdigest()[:12]


def test_rows_and_requests_must_match():
    with pytest.raises(ValueError, match=r"requests: 0 are given, allowed is one for each of 1"):
        Case(LogitsRecipe(4, (RowRecipe(),)), ())
    with pytest.raises(ValueError, match="calls = 0 is refused"):
        Case(LogitsRecipe(4, ()), (), calls=0)
    with pytest.raises(ValueError, match="one for each of 1 ids"):
        RowRecipe(ids=(1,))


def test_hash_is_splitmix64():
    # first outputs of splitmix64 seeded with 0, as published with the generator
    assert [hex(int(h)) for h in hashed(0, 3)] == [
        "0xe220a8397b1dcdaf",
        "0x6e789e6aa1b965f4",
        "0x6c45d188009454f",
    ]


def splitmix(seed, position):
    """One output in Python's own integers."""
    mask = 2**64 - 1
    z = (seed * 0xD1342543DE82EF95 + (position + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def unit(seed, position):
    return splitmix(seed, position) % 2049 - 1024


def test_backgrounds_against_integers_of_python():
    v, seed = 50, 7
    uniform = [Fraction(unit(4 * seed, i), 1024) for i in range(v)]
    assert RowRecipe(shape="uniform", seed=seed).build(v).tolist() == uniform
    bell = [Fraction(sum(unit(4 * seed + t, i) for t in range(4)), 1024) for i in range(v)]
    assert RowRecipe(shape="bell", seed=seed, scale=2.0, base=1.0).build(v).tolist() == [
        1 + 2 * x for x in bell
    ]
    by_hash = sorted(range(v), key=lambda i: splitmix(seed, i))
    zipf = RowRecipe(shape="zipf", seed=seed).build(v)
    assert [zipf[by_hash[rank]] for rank in (0, 1, 2, 3, 15)] == [0, -1, -1.5, -2, -4]


def test_zipf_is_minus_log2_of_the_rank_on_a_grid():
    row = np.sort(RowRecipe(shape="zipf", seed=1).build(1024))[::-1]
    ranks = np.arange(1, 1025)
    assert row[:4].tolist() == [0, -1, -1.5, -2]
    # linear interpolation of log2 is at most 0.0861 below it
    assert np.all(np.abs(row + np.log2(ranks)) < 0.0871)


@given(st.sampled_from(["uniform", "bell", "zipf"]), st.integers(0, 99), st.integers(1, 50))
def test_backgrounds_are_dyadic(shape, seed, vocab):
    row = RowRecipe(shape=shape, seed=seed, scale=0.25).build(vocab)
    assert np.array_equal(row * 4096, np.round(row * 4096))
    assert np.array_equal(row, row.astype(np.float32))


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("shape", [(3, 5), (1, 1), (0, 4)])
def test_layouts_hold_equal_values(layout, shape):
    logits = torch.arange(shape[0] * shape[1], dtype=torch.float32).reshape(shape)
    assert torch.equal(lay_out(logits, layout), logits)


def test_layouts_have_their_strides():
    logits = torch.zeros(3, 5)
    assert lay_out(logits, Layout.TRANSPOSED).stride() == (1, 3)
    assert lay_out(logits, Layout.STRIDED).stride() == (10, 2)
    assert lay_out(logits, Layout.SLICED).stride() == (8, 1)
    assert lay_out(logits, Layout.SLICED).storage_offset() == 11


@pytest.mark.parametrize("layout", Layout)
def test_a_layout_stays_on_the_device_of_the_logits(layout):
    # No data is needed to see where memory would be, so this machine needs no GPU.
    logits = torch.empty(3, 5, device="meta")
    assert lay_out(logits, layout).device == logits.device
