"""``python -m refsampler`` is the ``refsampler`` command."""

from refsampler.conformance.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    main(prog_name="refsampler")
