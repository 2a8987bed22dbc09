"""Speed: samplers side by side in one run, against reading the logits once."""

__all__: list[str] = []
