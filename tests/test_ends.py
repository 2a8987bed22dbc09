"""The cases of `noise-ends` and `noise-ends-long` are ones that a backend can be asked."""

import pytest

from refsampler.backends.native import backend
from refsampler.conformance.plan import make_plan


@pytest.mark.clause("draw.support")
@pytest.mark.parametrize(("profile", "wide"), [("quick", 2), ("full", 8)])
def test_the_live_ids_are_different_ones_inside_the_vocabulary(profile, wide):
    plan = make_plan(backend.capabilities, profile=profile, glob="draw.support", run_seed=1)
    cases = [one.case for one in plan.cases if one.check.name.startswith("noise-ends")]
    live = [case.logits.rows[0].ids[0] for case in cases if case.logits.vocab == 2**15]
    assert len(set(live)) == wide
    assert all(0 <= one < 2**15 for one in live)
