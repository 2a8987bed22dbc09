"""Subjects on standard input and output: programs in any language that speak JSON lines."""

__all__: list[str] = []
