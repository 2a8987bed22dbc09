"""Conversing: a check's own conversation with a backend that is open in this process."""

from __future__ import annotations

import torch

from refsampler.conformance.case import Case
from refsampler.conformance.checks.base import Asked, Check
from refsampler.conformance.subject import OpenSubject

__all__ = ["converse"]


def converse(check: Check, subject: OpenSubject, case: Case) -> Asked:
    """Hold the conversation, and hand back to a GPU what torch keeps of it in its cache.

    A conversation may be about batches of many gigabytes, and other processes of the run share the
    GPU: without its memory a right backend of theirs would fail (clause `output.returns`).

    Raises:
        SubjectError: the backend raised.

    """
    assert check.ask is not None
    try:
        return check.ask(subject, case)
    finally:
        if torch.device(subject.capabilities.device).type == "cuda":
            torch.cuda.empty_cache()
