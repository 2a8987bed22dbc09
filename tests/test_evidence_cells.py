"""Cells: what is lumped, skipped and outside, and how coarse views group them."""

import numpy as np
import pytest

from refsampler.conformance.evidence.cells import Cells
from refsampler.conformance.evidence.generic import event_sets
from refsampler.conformance.evidence.partitions import partitions


def mask(vocab, *ids):
    found = np.zeros(vocab, dtype=bool)
    found[list(ids)] = True
    return found


def every(vocab):
    return np.ones(vocab, dtype=bool)


def build(probs, core=None, hull=None, lumped=None, lump=0.0, floor=0.0):
    probs = np.asarray(probs, dtype=float)
    vocab = probs.size
    with np.errstate(divide="ignore"):
        return Cells.build(
            np.log(probs),
            every(vocab) if core is None else core,
            every(vocab) if hull is None else hull,
            mask(vocab) if lumped is None else lumped,
            np.log(lump) if lump else -np.inf,
            floor,
        )


def test_rare_ids_are_one_cell():
    cells = build([0.5, 0.004, 0.3, 0.006, 0.19], floor=0.01)
    assert cells.ids.tolist() == [0, 2, 4, -1]
    assert cells.probs == pytest.approx([0.5, 0.3, 0.19, 0.01])
    assert cells.describe(3) == "ids of probability < 0.01"
    tally = cells.tally(np.array([5, 1, 0, 2, 3]))
    assert tally.counts.tolist() == [5, 0, 3, 3]


def test_law_is_conditional_on_the_core():
    cells = build([0.4, 0.1, 0.3, 0.2], core=mask(4, 0, 1), hull=mask(4, 0, 1, 2))
    assert cells.probs == pytest.approx([0.8, 0.2])
    tally = cells.tally(np.array([7, 3, 11, 2]))
    assert tally.counts.tolist() == [7, 3]
    assert (tally.skipped, tally.outside) == (11, 2)


def test_tied_ids_share_their_mass():
    # Top-2 of logits with weights 5, 2, 2, 2: one of three tied ids is kept, whichever.
    weights = np.array([5.0, 2.0, 2.0, 2.0])
    cells = build(weights, core=mask(4, 0), hull=every(4), lumped=mask(4, 1, 2, 3), lump=2.0)
    assert cells.ids.tolist() == [0, -1]
    assert cells.probs == pytest.approx([5 / 7, 2 / 7])
    assert cells.tally(np.array([4, 1, 0, 2])).counts.tolist() == [4, 3]
    assert cells.describe(1) == "tied ids"


def test_an_id_of_no_mass_in_the_core_is_rare_not_outside():
    cells = build([0.5, 0.0, 0.5])
    assert cells.tally(np.array([0, 1, 0])).outside == 0
    assert (cells.probs > 0).all()


def test_a_faulty_law_folds_into_the_same_cells():
    cells = build([0.5, 0.004, 0.3, 0.006, 0.19], floor=0.01)
    folded = cells.fold(np.array([1.0, 1.0, 1.0, 1.0, 4.0]))
    assert folded == pytest.approx([1 / 8, 1 / 8, 4 / 8, 2 / 8])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"floor": 1.0}, "floor = 1.0"),
        ({"core": every(3)}, r"core of shape \(3,\)"),
        ({"hull": mask(4, 0)}, "ids of the hull"),
        ({"core": mask(4), "hull": mask(4)}, "at least one core id"),
        ({"lumped": mask(4, 1)}, "lump_logprob = -inf"),
    ],
)
def test_bad_input_is_named(change, words):
    with pytest.raises(ValueError, match=words):
        build([0.4, 0.3, 0.2, 0.1], **change)


@pytest.mark.parametrize("counts", [np.array([1, 2]), np.array([1, -1, 0, 0])])
def test_bad_counts_are_named(counts):
    with pytest.raises(ValueError, match="counts of shape"):
        build([0.4, 0.3, 0.2, 0.1]).tally(counts)


def test_views_keep_the_mass_and_the_counts():
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.full(3000, 0.2))
    cells = build(probs, floor=1e-5)
    counts = cells.tally(rng.multinomial(5000, probs)).counts
    views = partitions(cells)
    assert {view.name for view in views} >= {"id mod 32", "octave of rank", "id // 1024"}
    for view in views:
        assert view.probs.sum() == pytest.approx(1.0, abs=1e-12)
        assert view.fold(counts).sum() == counts.sum()
        lump = view.bucket_of_cell[-1]  # the rare ids keep a bucket of their own
        assert (view.bucket_of_cell == lump).sum() == 1


def test_octaves_of_rank_by_hand():
    cells = build([0.05, 0.4, 0.1, 0.2, 0.25])  # ranks 4, 0, 3, 2, 1
    view = next(one for one in partitions(cells) if one.name == "octave of rank")
    assert view.probs == pytest.approx([0.4, 0.25 + 0.2, 0.1 + 0.05])
    assert view.describe(2) == "octave of rank: bucket 2"
    assert event_sets(view, view.probs) == pytest.approx([0.4, 0.45, 0.15, 0.85])
    assert view.describe(3) == "octave of rank: first 2 buckets"


def test_one_cell_has_no_view():
    assert partitions(build([1.0])) == ()
