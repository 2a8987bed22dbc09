"""Scripts that show a failure again with torch and the adapter only, one module a kind of failure."""

__all__: list[str] = []
