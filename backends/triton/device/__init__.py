"""Functions that run on the device, or in Triton's interpreter; one source for every GPU."""

__all__: list[str] = []
