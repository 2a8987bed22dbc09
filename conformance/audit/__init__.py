"""Audit: the suite itself under test, fault by fault."""

__all__: list[str] = []
