"""Starts the ranks of a comparison, each a process of its own, and has all of them run the same turns.

Ranks of several teams may exist at the same time. A team that has no turn waits and uses no processor.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from indb_tensile.bench.harness.comparisons.rank_contenders import (
    PlannedMemory,
    RankContenders,
    RankMethod,
    RankTask,
    RankTurn,
    SubjectSource,
)
from indb_tensile.bench.harness.comparisons.remote_contenders import ContenderProcess
from indb_tensile.errors import RankLostError
from indb_tensile.executor.capture.rank_share import RankShare
from indb_tensile.executor.run.state import HOST

T = TypeVar("T")


class RankTeam:
    """The ranks that train one network together."""

    def __init__(self, source: SubjectSource, *, ranks: int, parts: int) -> None:
        self.ranks = ranks
        self._directory = TemporaryDirectory()
        shares = [RankShare(rank=rank, ranks=ranks) for rank in range(ranks)]
        where = str(Path(self._directory.name))
        tasks = [RankTask(source=source, parts=parts, share=share, directory=where) for share in shares]
        self._processes = [ContenderProcess(HOST, _begin, task) for task in tasks]
        self._threads = ThreadPoolExecutor(ranks)

    def plan(self, method: RankMethod) -> list[PlannedMemory | None]:
        """Make the method's plan on each rank."""
        return self._ask(_plan, method)

    def turn(self, method: RankMethod, iterations: int) -> list[RankTurn]:
        """Run one turn on all ranks at once."""
        return self._ask(_turn, method, iterations)

    def close(self) -> None:
        """End the ranks."""
        try:
            self._ask(_close)
        finally:
            self._threads.shutdown()
            for process in self._processes:
                process.__exit__()
            self._directory.cleanup()

    def __enter__(self) -> "RankTeam":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, function: Callable[..., T], *arguments: object) -> list[T]:
        """Ask all ranks, and return their answers in order. Of several errors raise one from which others follow."""
        futures = [self._threads.submit(process.ask, function, *arguments) for process in self._processes]
        errors = [error for future in as_completed(futures) if (error := future.exception()) is not None]
        if errors:
            raise next((error for error in errors if not isinstance(error, RankLostError)), errors[0])
        return [future.result() for future in futures]


# --- in the process of a rank --------------------------------------------------------------------------------------

_contenders: list[RankContenders] = []


def _begin(task: RankTask) -> None:
    _contenders.append(RankContenders(task))


def _plan(method: RankMethod) -> PlannedMemory | None:
    return _contenders[0].plan(method)


def _turn(method: RankMethod, iterations: int) -> RankTurn:
    return _contenders[0].turn(method, iterations)


def _close() -> None:
    _contenders.pop().close()
