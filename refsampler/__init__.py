"""What a conforming LLM token sampler does, written to be read."""

__all__ = ["__version__"]

__version__ = "0.1.0"
