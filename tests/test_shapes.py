"""The run-time checks of shapes see a wrong one, in each test anew."""

import jaxtyping
import pytest
import torch

from refsampler.law_row import power_of_two
from refsampler.truncation import keep
from tests import shapes


def wrong() -> None:
    keep(torch.zeros(2, 3), torch.ones(2, 4, dtype=torch.bool))


def test_a_wrong_shape_is_seen_among_the_first_calls():
    power_of_two(torch.ones(3, dtype=torch.float64))
    with pytest.raises(jaxtyping.TypeCheckError):
        wrong()


def test_later_calls_are_not_checked_until_the_next_test():
    for _ in range(shapes.CHECKED):
        power_of_two(torch.ones(3, dtype=torch.float64))
    assert jaxtyping.config.jaxtyping_disable


def test_the_next_test_is_checked():
    with pytest.raises(jaxtyping.TypeCheckError):
        wrong()
    with shapes.unchecked():
        assert jaxtyping.config.jaxtyping_disable
    assert not jaxtyping.config.jaxtyping_disable
