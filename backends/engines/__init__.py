"""Samplers of other engines, called on given logits without a model."""

__all__: list[str] = []
