"""What is made of decisions: records, JUnit files."""

__all__: list[str] = []
