"""Faults: what real samplers got wrong, each as a small wrong subject, with its public thread.

Every entry overrides one piece of a right kernel, sampler or engine (`right`), says which clause
it breaks, and must turn the suite red.  One module a kind, so that the folder can be read as the
history of the field; `registry.all_faults()` collects them, `refsampler audit` runs the suite on
them.
"""

__all__: list[str] = []
