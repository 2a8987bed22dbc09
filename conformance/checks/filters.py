"""Temperature, min-p, top-k, top-p, their order, and that no id is special."""

from __future__ import annotations

from collections.abc import Callable

from refsampler.backends.protocol import Capabilities
from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import Check, Kind, clause_ids
from refsampler.conformance.designed import filters

__all__ = ["CHECKS"]


def _always(
    make: Callable[[], tuple[Case, ...]],
) -> Callable[[Capabilities, int], tuple[Case, ...]]:
    return lambda _capabilities, _run_seed: make()


CHECKS: tuple[Check, ...] = (
    Check(
        "temperature-rows",
        clause_ids("temperature.scale", "effect.parameters"),
        Kind.NEAR_CERTAIN,
        lambda capabilities, _run_seed: filters.temperature_cases(capabilities.dtypes),
    ),
    Check(
        "min-p-rows",
        clause_ids("min-p.keep", "order.pipeline", "effect.parameters"),
        Kind.NEAR_CERTAIN,
        _always(filters.min_p_cases),
    ),
    Check(
        "top-k-rows",
        clause_ids("top-k.keep", "top-k.ties", "top-k.off", "effect.parameters"),
        Kind.NEAR_CERTAIN,
        _always(filters.top_k_cases),
    ),
    Check(
        "top-p-rows",
        clause_ids("top-p.keep", "top-p.ties", "top-p.off", "effect.parameters"),
        Kind.NEAR_CERTAIN,
        _always(filters.top_p_cases),
    ),
    Check(
        "filter-order",
        clause_ids("order.pipeline"),
        Kind.NEAR_CERTAIN,
        _always(filters.order_cases),
    ),
    Check(
        "relabelled-rows",
        clause_ids("relabel.equivariance"),
        Kind.NEAR_CERTAIN,
        _always(filters.relabel_cases),
    ),
)
