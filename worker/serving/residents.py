"""Models kept in memory: loaded once, by whoever asks first, and the least recently used dropped first."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from indb_tensile.job import ModelVersionId

from .batches import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """A loaded version, the bytes of its weights, and the oid of the role that owns the model."""

    model: Model
    size_bytes: int
    owner: int = 0


Load = Callable[[ModelVersionId], Awaitable[Resident]]


class Residents:
    """Versions by least recent use, within `capacity_bytes`; the one just asked for always stays.

    A version never changes, so what is resident is never stale. Belongs to the event loop: it holds no lock.
    """

    def __init__(self, load: Load, capacity_bytes: int) -> None:
        self._load = load
        self._capacity_bytes = capacity_bytes
        self._resident: OrderedDict[ModelVersionId, Resident] = OrderedDict()
        self._loading: dict[ModelVersionId, asyncio.Task[Resident]] = {}

    @property
    def versions(self) -> tuple[ModelVersionId, ...]:
        """The resident versions, least recently used first."""
        return tuple(self._resident)

    @property
    def size_bytes(self) -> int:
        """The weights of all resident versions."""
        return sum(resident.size_bytes for resident in self._resident.values())

    async def get(self, version: ModelVersionId) -> Model:
        """The version's model, loaded where it is not resident. Raises what loading raises."""
        found = self._resident.get(version)
        if found is None:
            # Shielded: others may wait for the same load when this one's client goes away.
            found = await asyncio.shield(self._loading.get(version) or self._start(version))
        if version in self._resident:
            self._resident.move_to_end(version)
        return found.model

    def owner(self, version: ModelVersionId) -> int:
        """The role that owns a resident version's model; 0 for one that has been dropped from memory since."""
        found = self._resident.get(version)
        return 0 if found is None else found.owner

    def _start(self, version: ModelVersionId) -> asyncio.Task[Resident]:
        task = asyncio.ensure_future(self._keep(version))
        self._loading[version] = task
        task.add_done_callback(_retrieve)
        return task

    async def _keep(self, version: ModelVersionId) -> Resident:
        try:
            loaded = await self._load(version)
        finally:
            del self._loading[version]
        self._resident[version] = loaded
        while self.size_bytes > self._capacity_bytes and len(self._resident) > 1:
            self._resident.popitem(last=False)
        return loaded


def _retrieve(task: asyncio.Task[Resident]) -> None:
    """Mark a failure as seen: where every client that waited has gone, nobody else would."""
    if not task.cancelled():
        task.exception()
