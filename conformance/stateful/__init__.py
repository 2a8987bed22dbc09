"""Stateful: what the state machines drive, write down and judge, step by step."""

__all__: list[str] = []
