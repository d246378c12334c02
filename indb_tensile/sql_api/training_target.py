"""What a training is to predict: one column of a table, or several together."""

from typing import NamedTuple

from ..request.task_rules import target_text
from .training_table import TableColumn

_INTEGER_ARRAYS = ("_int2", "_int4", "_int8")


class TrainingTarget(NamedTuple):
    """What to predict: a column, or several that are predicted together."""

    columns: tuple[TableColumn, ...]

    @property
    def name(self) -> str:
        """Return the column's name, or the list of the columns' names as JSON; empty without a column."""
        names = self.names
        if not names:
            return ""
        return names[0] if len(names) == 1 else target_text(names)

    @property
    def names(self) -> list[str]:
        """Return the columns' names."""
        return [column.name for column in self.columns]

    @property
    def type(self) -> str:
        """Return the columns' types, for a message."""
        return ", ".join(dict.fromkeys(column.type for column in self.columns))

    @property
    def kind(self) -> str:
        """Return the kind as TARGET_KINDS names it; that of several columns is the kind of an array of them."""
        if not self.columns:
            return "none"
        if len(self.columns) > 1:
            return "flags" if all(column.kind == "boolean" for column in self.columns) else "array"
        (column,) = self.columns
        if column.base == "_bool":
            return "flags"
        return "integers" if column.base in _INTEGER_ARRAYS else column.kind
