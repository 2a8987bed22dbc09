"""Ahead: a forked process draws the generated batches while this one works out the laws of a plan.

Hypothesis takes seconds for them, as the laws do; on two cores they need not wait for each other.  The
batches are those that would be drawn here, and come back as canonical JSON.
"""

from __future__ import annotations

import multiprocessing
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Final

from refsampler.backends.protocol import Capabilities
from refsampler.conformance.case import decode_case, encode_case
from refsampler.conformance.checks.generated import generated, keep

__all__ = ["batches_ahead"]

_CAN_FORK: Final = sys.platform == "linux"


@contextmanager
def batches_ahead(
    capabilities: Capabilities, run_seed: int, *, worth: bool
) -> Iterator[Callable[[], None]]:
    """Start drawing; what is yielded waits for the batches, and is called when they are wanted.

    Args:
        capabilities: of the backend; with another device than the CPU nothing is forked.
        run_seed: of the run.
        worth: whether the run wants all of them.

    """
    if not (worth and _CAN_FORK and capabilities.device == "cpu"):
        yield lambda: None
        return
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_draw, args=(capabilities, run_seed, there), daemon=True)
    with warnings.catch_warnings():
        # Python counts the idle threads of numpy's linear algebra, which survives a fork
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    there.close()

    def wait() -> None:
        try:
            documents = [here.recv_bytes() for _ in range(int(here.recv_bytes()))]
        except EOFError:
            return  # it has ended: they are drawn here
        keep(capabilities, run_seed, map(decode_case, documents))

    try:
        yield wait
    finally:
        here.close()
        process.terminate()
        process.join()


def _draw(capabilities: Capabilities, run_seed: int, there: Connection) -> None:
    """Draw the batches and send them, after their number."""
    documents = [encode_case(case) for case in generated(capabilities, run_seed)]
    there.send_bytes(str(len(documents)).encode())
    for document in documents:
        there.send_bytes(document)
