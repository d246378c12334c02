"""The facts of a data report, and what a report is made from."""

from dataclasses import dataclass

from indb_tensile.learning.encoding.feature_options import FeatureOptions
from indb_tensile.learning.encoding.image_faults import SkippedRows
from indb_tensile.learning.encoding.preprocessor import Preprocessor
from indb_tensile.learning.storage.columns import ColumnData, Rows, TableData
from indb_tensile.learning.storage.row_storage import gathered
from indb_tensile.learning.storage.splits import Parts, Split

MOST_NAMES = 50  # classes, labels, values or columns that a report names
MOSTLY = 0.5  # the report warns if a larger share of the values is missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One line of a report.

    `subject` is a column, a class or a metric. `warning` is a sentence, or None.
    """

    section: str
    fact: str
    value: str
    subject: str | None = None
    warning: str | None = None

    def to_json(self) -> dict[str, str | None]:
        """Return the fact as it is stored."""
        return {name: getattr(self, name) for name in ("section", "subject", "fact", "value", "warning")}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReportInput:
    """The input of a report: a table that was read, and the results of preparing it for training.

    `known` are the positions of the rows that have a target and whose images can be read. `parts` contains positions
    within `known`. `skipped` are the rows whose images cannot be read, and `unlabeled_rows` those without a target;
    None stands for all rows that are not known.
    """

    table: TableData
    known: Rows
    parts: Parts
    split: Split
    preprocessor: Preprocessor
    options: FeatureOptions
    skipped: tuple[SkippedRows, ...] = ()
    unlabeled_rows: int | None = None

    @property
    def target(self) -> ColumnData:
        """Return the target values of the rows that have a target."""
        data = self.table.columns[self.preprocessor.target.name]
        return data if len(self.known) == self.table.rows else data.stored(self.known, self.table.storage)

    def rows(self, part: str) -> Rows:
        """Return the positions in the table of the rows of a part."""
        positions: Rows = getattr(self.parts, part)
        if len(self.known) == self.table.rows:
            return positions
        return gathered(self.known, positions, self.table.storage)


def share_text(part: int, whole: int) -> str:
    """Return a share in per cent, with three digits."""
    return f"{100 * part / whole:.3g} %" if whole else "0 %"
