"""How we find out whether a backend does what the contract says."""

__all__: list[str] = []
