"""Cases built for a purpose, a file for each clause group, with margin: the core is the hull."""

__all__: list[str] = []
