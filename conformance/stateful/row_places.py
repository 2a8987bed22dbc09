"""Rows of a batch as a machine moves them: who is where, and what is free."""

from __future__ import annotations

__all__ = ["RowPlaces"]


class RowPlaces:
    """Requests in rows; a request takes the lowest free row, else one more."""

    def __init__(self) -> None:
        self._rows: list[int | None] = []

    @property
    def names(self) -> tuple[int, ...]:
        """Those who have a row, in row order."""
        return tuple(name for name in self._rows if name is not None)

    @property
    def rows(self) -> tuple[int | None, ...]:
        """The request of each row; None where it is free."""
        return tuple(self._rows)

    @property
    def free(self) -> tuple[int, ...]:
        """Rows without a request."""
        return tuple(row for row, name in enumerate(self._rows) if name is None)

    def row(self, name: int) -> int:
        """Return the row of a request."""
        return self._rows.index(name)

    def add(self, name: int) -> int:
        """Give a request the lowest free row, else one more; return it."""
        row = self.free[0] if self.free else len(self._rows)
        self._rows[row : row + 1] = [name]
        return row

    def remove(self, name: int) -> None:
        """Free the row of a request."""
        self._rows[self.row(name)] = None

    def move(self, name: int, target: int) -> None:
        """Move a request to a free row."""
        self._rows[self.row(name)], self._rows[target] = None, name

    def swap(self, one: int, other: int) -> None:
        """Exchange the rows of two requests."""
        first, second = self.row(one), self.row(other)
        self._rows[first], self._rows[second] = other, one

    def condense(self) -> None:
        """Fill the free rows, lowest first, from the end."""
        while None in self._rows:
            last = self._rows.pop()
            if last is not None:
                self._rows[self._rows.index(None)] = last
