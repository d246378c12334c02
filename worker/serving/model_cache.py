"""Cache of loaded models. A version is loaded at its first request; the least recently used one is evicted first."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from indb_tensile.job import ModelVersionId

from .prediction_batches import ServedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedModel:
    """A loaded version, the bytes of its weights, and the oid of the role that owns its model."""

    model: ServedModel
    size_bytes: int
    owner: int = 0


Load = Callable[[ModelVersionId], Awaitable[CachedModel]]


class ModelCache:
    """The loaded versions in order of use, within `capacity_bytes`. The version requested last is never evicted.

    A version never changes, so a loaded one is never outdated. All calls come from the event loop, so there is no
    lock.
    """

    def __init__(self, load: Load, capacity_bytes: int) -> None:
        self._load = load
        self._capacity_bytes = capacity_bytes
        self._resident: OrderedDict[ModelVersionId, CachedModel] = OrderedDict()
        self._loading: dict[ModelVersionId, asyncio.Task[CachedModel]] = {}

    @property
    def versions(self) -> tuple[ModelVersionId, ...]:
        """The loaded versions, least recently used first."""
        return tuple(self._resident)

    @property
    def size_bytes(self) -> int:
        """The bytes of the weights of all loaded versions."""
        return sum(resident.size_bytes for resident in self._resident.values())

    async def get(self, version: ModelVersionId) -> ServedModel:
        """Return the version's model; load it if it is not in memory. Raises the errors of loading."""
        resident = self._resident.get(version)
        if resident is None:
            # Shielded: other requests may wait for the same load when this request's client disconnects.
            resident = await asyncio.shield(self._loading.get(version) or self._start_load(version))
        if version in self._resident:
            self._resident.move_to_end(version)
        return resident.model

    def get_resident(self, version: ModelVersionId) -> ServedModel | None:
        """Return the version's model if it is in memory."""
        resident = self._resident.get(version)
        if resident is None:
            return None
        self._resident.move_to_end(version)
        return resident.model

    def owner(self, version: ModelVersionId) -> int:
        """Return the oid of the role that owns the version's model; 0 if the version was evicted meanwhile."""
        resident = self._resident.get(version)
        return 0 if resident is None else resident.owner

    def _start_load(self, version: ModelVersionId) -> asyncio.Task[CachedModel]:
        task = asyncio.ensure_future(self._load_and_store(version))
        self._loading[version] = task
        task.add_done_callback(_retrieve)
        return task

    async def _load_and_store(self, version: ModelVersionId) -> CachedModel:
        try:
            loaded = await self._load(version)
        finally:
            del self._loading[version]
        self._resident[version] = loaded
        while self.size_bytes > self._capacity_bytes and len(self._resident) > 1:
            self._resident.popitem(last=False)
        return loaded


def _retrieve(task: asyncio.Task[CachedModel]) -> None:
    """Mark a failure as retrieved: if every waiting client has disconnected, nothing else would retrieve it."""
    if not task.cancelled():
        task.exception()
