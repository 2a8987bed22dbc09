"""Scalars of the CPU sampler: exp in float64, Philox uniforms, floats in integer order."""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import njit

from refsampler.backends.cpu.vectors import (
    bits_of_double,
    bits_of_float,
    double_of_bits,
    float_of_bits,
)

__all__ = ["LOG2E", "LOWEST", "NEGINF", "exp64", "key", "ordered_float", "uniform"]

LOG2E: Final = 1.4426950408889634
NEGINF: Final = np.float32(-np.inf)
LOWEST: Final = np.float32(np.finfo(np.float32).min)

_LN2_HIGH: Final = 0.6931471803691238
_LN2_LOW: Final = 1.9082149292705877e-10
_ROUND: Final = 6755399441055744.0  # 1.5 * 2**52: adding it leaves the nearest integer
_BIAS: Final = np.int64(1023)

# Philox4x32-10: multipliers and Weyl increments of its key (Salmon et al., 2011).
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW, _HALF, _TOP53 = np.uint64(0xFFFFFFFF), np.uint64(32), np.uint64(11)


@njit(fastmath={"contract"}, error_model="numpy")
def exp64(y: float) -> float:
    """Return exp(y) for y <= 0 within 1 ulp; 0 below -708, for -inf and for NaN.

    Taylor's series to the power 13 on |r| <= ln(2) / 2.
    """
    z = y if y > -708.0 else -708.0  # noqa: FURB136 - a NaN becomes -708
    shifted = z * LOG2E + _ROUND
    n = shifted - _ROUND
    r = z - n * _LN2_HIGH - n * _LN2_LOW
    q = (1.6059043836821613e-10 * r + 2.08767569878681e-09) * r + 2.505210838544172e-08
    q = (q * r + 2.755731922398589e-07) * r + 2.7557319223985893e-06
    q = (q * r + 2.48015873015873e-05) * r + 1.984126984126984e-04
    q = (q * r + 1.388888888888889e-03) * r + 8.333333333333333e-03
    q = (q * r + 4.1666666666666664e-02) * r + 1.6666666666666666e-01
    q = (q * r + 0.5) * r * r + r + 1.0
    power = double_of_bits((bits_of_double(shifted) + _BIAS) << 52)
    return q * power if y > -708.0 else 0.0


@njit(error_model="numpy")
def uniform(seed: np.uint64, step: np.uint64, throw: np.uint64, stream: np.uint64) -> float:
    """Return 53 bits of Philox4x32-10 in (0, 1): key = seed, counter = (step, throw, stream)."""
    k0, k1 = seed & _LOW, seed >> _HALF
    c0, c1, c2, c3 = step & _LOW, step >> _HALF, throw, stream
    for _ in range(10):
        a, b = _M0 * c0, _M1 * c2
        c0, c1 = (b >> _HALF) ^ c1 ^ k0, b & _LOW
        c2, c3 = (a >> _HALF) ^ c3 ^ k1, a & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return (float((c0 << _HALF | c1) >> _TOP53) + 0.5) * 2.0**-53


@njit(error_model="numpy")
def key(value: np.float32) -> np.int32:
    """Return an integer in the order of the floats; only thresholds become keys, so -0 is 0."""
    bits = bits_of_float(value)
    return bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))


@njit(error_model="numpy")
def ordered_float(number: np.int32) -> np.float32:
    """Return the float whose `key` is `number`."""
    return float_of_bits(number ^ ((number >> np.int32(31)) & np.int32(0x7FFFFFFF)))
