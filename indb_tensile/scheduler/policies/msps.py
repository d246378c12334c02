"""Capuchin's memory saving per second of recomputation, updated as sources disappear.

Recomputing a tensor saves its bytes and costs its cone's time. The ratio ranks the candidates (MSPS, TENSILE section
IV-D equation 4). A decision changes the ratio of other candidates. A candidate that would have read the dropped
tensor now has to recompute it too, so its cone grows. A tensor that earlier decisions read would, if dropped, be
recomputed once more for each of them, so its cost grows.
"""

from collections.abc import Iterable

from indb_tensile.scheduler.graph import TensorId
from indb_tensile.scheduler.memory.peak import Gap
from indb_tensile.scheduler.recomputation.recompute import Recomputation


class SavingPerTime:
    """The candidates' cones beside the gaps that are dropped already. A cone is computed when it is first needed."""

    def __init__(self, recomputation: Recomputation) -> None:
        self._recomputation = recomputation
        self._sizes = [tensor.size_bytes for tensor in recomputation.graph.tensors]
        self._time_ns: dict[Gap, int] = {}
        self._readers: dict[TensorId, dict[Gap, None]] = {}  # by source: the gaps whose cones read it
        self.dropped: dict[Gap, None] = {}

    def drop(self, gap: Gap) -> None:
        """Decide that this gap's tensor is recomputed."""
        self.dropped[gap] = None
        for reader in self._readers.pop(gap.tensor, {}):
            self._time_ns.pop(reader, None)
        self._ask_dropped()

    def keep(self, gap: Gap) -> None:
        """Undo the decision to drop this gap's tensor."""
        del self.dropped[gap]
        self._time_ns.clear()
        self._readers.clear()
        self._ask_dropped()

    def best(self, gaps: Iterable[Gap]) -> tuple[Gap, int] | None:
        """Return the gap that saves most for its time, and that time. Of equal gaps return the first."""
        best_gap, ratio, time = None, -1.0, 0
        for gap in gaps:
            if gap in self.dropped or not self._recomputation.safe(gap):
                continue
            time_ns = self.time_ns(gap)
            saving = self._sizes[gap.tensor] / (time_ns + 1)
            if saving > ratio:
                best_gap, ratio, time = gap, saving, time_ns
        return None if best_gap is None else (best_gap, time)

    def time_ns(self, gap: Gap) -> int:
        """Return the cost of dropping this gap's tensor, including its recomputation for other cones."""
        readers = self._readers.get(gap.tensor, {})
        others = sum(r in self.dropped and gap.out_after < r.needed_by < gap.needed_by for r in readers)
        return self._cone_ns(gap) * (1 + others)

    def _ask_dropped(self) -> None:
        for gap in self.dropped:
            self._cone_ns(gap)

    def _cone_ns(self, gap: Gap) -> int:
        if gap not in self._time_ns:
            cone = self._recomputation.cone(gap, self.dropped)
            self._time_ns[gap] = cone.time_ns
            for source in cone.sources:
                self._readers.setdefault(source, {})[gap] = None
        return self._time_ns[gap]
