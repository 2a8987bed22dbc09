"""The commands of the ``refsampler`` program, a file for each family."""

__all__: list[str] = []
