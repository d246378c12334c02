"""Numbers the arguments of a program's calls that are objects, so that its text can name them."""

from typing import Any


class ProgramConstants:
    """The arguments of calls that are no text. Both variants of a program name the same argument alike."""

    def __init__(self) -> None:
        self._numbered: dict[int, tuple[int, Any]] = {}  # by identity, as arguments need not be hashable

    def name_of(self, value: Any) -> str:
        """Return the name that the value has in the program's scope."""
        return f"c{self._numbered.setdefault(id(value), (len(self._numbered), value))[0]}"

    def values(self) -> tuple[Any, ...]:
        """Return the values in the order of their numbers."""
        return tuple(value for _, value in self._numbered.values())
