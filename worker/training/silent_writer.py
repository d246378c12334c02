"""The progress of a rank above 0: only its controller hears of it, because rank 0 writes for all ranks."""

from collections.abc import Callable
from typing import Any

from indb_tensile.catalog.connection import Connection

from .progress_writer import ProgressWriter


class SilentWriter(ProgressWriter):
    """Writes nothing about the job. Measurements of this kind of device are written, once."""

    def keep(self, kind: str, write: Callable[[Connection], Any]) -> None:
        """Write what later jobs and attempts need."""
        del kind
        self.remember(write)

    def _put(self, kind: str, write: Callable[[Connection], Any]) -> None:
        """Write nothing: rank 0 writes the same under the claim of the job."""
