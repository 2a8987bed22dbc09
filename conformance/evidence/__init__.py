"""How sure we are: e-processes, tolerance, guarantees and the false-alarm budget."""

__all__: list[str] = []
