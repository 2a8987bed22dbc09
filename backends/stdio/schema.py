"""Writes the JSON Schema of the wire: `python -m refsampler.backends.stdio.schema > docs/wire-schema.json`."""

import sys

from refsampler.backends.stdio.wire import schema

__all__ = ["main"]


def main() -> None:
    """Write it to standard output."""
    sys.stdout.buffer.write(schema())


if __name__ == "__main__":
    main()
