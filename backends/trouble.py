"""Trouble that is nobody's verdict: the harness could not ask, or nobody knows what was answered."""

__all__ = ["WorkerFault"]


class WorkerFault(RuntimeError):  # noqa: N818 - reads as what happened
    """The harness failed beside the subject: an ERROR, never a FAIL."""
