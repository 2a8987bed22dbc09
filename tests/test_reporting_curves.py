"""The plots' numbers against counts worked by hand, and the shapes against faults of a known size."""

import numpy as np
import pytest
from scipy import stats

from refsampler.conformance.case import encode_case
from refsampler.conformance.designed.build import batch, request, row
from refsampler.conformance.faults.right import RightKernel
from refsampler.conformance.reporting.curves import buckets, difference, ratios
from refsampler.conformance.reporting.shapes import shape_of
from refsampler.conformance.reporting.stored_law import stored_law
from refsampler.conformance.reporting.streams import copied_share, shared_rows


def law_of(counts, logits, **asked):
    """A stored law with these counts [(id, times)]."""
    import msgspec

    from refsampler.conformance.records import LawRecord

    case = batch(64, [(row(logits), request(**asked))], "draw.law")
    record = LawRecord(
        check="laws",
        id=case.id,
        case=msgspec.Raw(encode_case(case)),
        draws=sum(times for _, times in counts),
        outside=0,
        counts=tuple(counts),
        log_e=0.0,
        seconds=0.0,
    )
    return stored_law(record, RightKernel.capabilities)


def test_the_difference_is_frequency_minus_probability_from_the_top_rank():
    # ranks: 1/2, 3/8, 1/8; 3, 4 and 1 of 8 draws
    curve = difference(np.array([0.125, 0.5, 0.375]), np.array([1, 3, 4]))
    assert curve.at.tolist() == [0, 0.5, 0.875, 1]
    assert curve.off.tolist() == [0, -0.125, 0, 0]
    assert curve.band == pytest.approx((np.log(2000) / 16) ** 0.5)


def test_a_long_curve_keeps_its_highest_and_lowest_point():
    probs = np.full(4096, 1 / 4096)
    counts = np.ones(4096, dtype=np.int64)
    counts[1000], counts[3000] = 200, 0
    whole = np.cumsum(counts) / counts.sum() - np.cumsum(probs)
    curve = difference(probs, counts)
    assert curve.at.size <= 122
    assert (curve.off.max(), curve.off.min()) == pytest.approx((whole.max(), whole.min()))


def test_ratios_stand_in_the_exact_binomial_band():
    points = ratios(np.array([0.5, 0.25, 0.25]), np.array([400, 300, 300]))
    assert points.ratio.tolist() == [0.8, 1.2, 1.2]
    low = [stats.binom.ppf(0.0005, 1000, p) for p in (0.5, 0.25, 0.25)]
    assert points.low == pytest.approx(np.array(low) / [500, 250, 250])
    assert (points.ratio < points.low).tolist() == [True, False, False]
    # many ids stand together, and none is lost
    wide = ratios(np.full(8192, 1 / 8192), np.ones(8192, dtype=np.int64))
    assert wide.prob.size < 200
    assert wide.ratio == pytest.approx(1.0)


def test_buckets_are_octaves_of_rank():
    probs = np.array([0.4, 0.2, 0.2, 0.05, 0.05, 0.05, 0.05])
    bars = buckets(probs, np.array([40, 10, 10, 10, 10, 10, 10]))
    assert bars.first.tolist() == [1, 2, 4]
    assert bars.off == pytest.approx([0.0, -0.2, 0.2])
    interval = stats.binomtest(20, 100).proportion_ci(0.999, method="exact")
    assert (bars.low[1], bars.high[1]) == pytest.approx((interval.low - 0.4, interval.high - 0.4))


LADDER = {place: -place / 4 for place in range(32)}


def drawn(probs, draws=10**6):
    return [(place, round(draws * float(p))) for place, p in enumerate(probs)]


def softmax(logits):
    weights = np.exp(logits)
    return weights / weights.sum()


def test_a_wrong_temperature_is_named_with_its_size():
    logits = np.array([*LADDER.values()])
    shape = shape_of(law_of(drawn(softmax(logits / 1.07)), LADDER))
    assert shape is not None
    assert shape.words.startswith("temperature looks like 1.07 (1.06")
    assert shape.words.endswith("where 1 was asked")


def test_a_missing_tail_is_named_with_its_rank():
    # ids beyond rank 20 come half as often
    probs = softmax(np.array([*LADDER.values()]))
    probs[20:] /= 2
    shape = shape_of(law_of(drawn(probs / probs.sum()), LADDER))
    assert shape is not None
    assert shape.words.startswith("too few ids below rank 20:")


def test_one_id_is_named():
    probs = np.full(32, 1 / 32)
    probs[7] *= 2
    shape = shape_of(law_of(drawn(probs / probs.sum()), dict.fromkeys(range(32), 0.0)))
    assert shape is not None
    assert shape.words.startswith("id 7 drawn 60,606 times, 31,2")


def test_a_right_law_has_no_shape():
    probs = softmax(np.array([*LADDER.values()]))
    counts = np.random.default_rng(3).multinomial(10**6, probs)
    assert shape_of(law_of([*enumerate(counts.tolist())], LADDER)) is None


def test_rows_that_share_a_stream_are_named():
    ids = np.random.default_rng(1).integers(0, 65536, (6, 32))
    assert list(shared_rows(ids, 65536)) == []
    ids[:, 9:16] = ids[:, 8:9]
    assert list(shared_rows(ids, 65536)) == ["rows 8 to 15 share a stream"]
    # two calls of a small vocabulary: any two rows may agree
    assert list(shared_rows(ids[:2] % 8, 8)) == []


def test_copies_beyond_chance_are_a_share():
    rng = np.random.default_rng(2)
    first, second = rng.integers(0, 64, (2, 10_000))
    assert copied_share(first, second, 64) == 0
    second[:1000] = first[:1000]
    assert copied_share(first, second, 64) == pytest.approx(0.1, abs=0.01)
