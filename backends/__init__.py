"""What is tested: samplers behind one of the three adapter levels. Heavy imports happen on use."""

__all__: list[str] = []
