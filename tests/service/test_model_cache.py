"""Check which model versions the service keeps in memory, and how concurrent requests share a load."""

import asyncio
from typing import Any

import pytest

from indb_tensile.errors import MissingError
from indb_tensile.job import ModelVersionId
from worker.serving.model_cache import CachedModel, ModelCache

from .fakes import Echo

A, B, C = (ModelVersionId(n) for n in (1, 2, 3))


class FakeStore:
    """Loads any version except those in `missing`, as a model of `size_bytes`, as soon as `finish_loads` is set."""

    def __init__(self) -> None:
        self.loaded: list[ModelVersionId] = []
        self.finish_loads = asyncio.Event()
        self.finish_loads.set()
        self.size_bytes = 10
        self.missing: set[ModelVersionId] = set()

    async def load(self, version: ModelVersionId) -> CachedModel:
        self.loaded.append(version)
        await self.finish_loads.wait()
        if version in self.missing:
            raise MissingError(f"there is no version {version}")
        return CachedModel(model=Echo(), size_bytes=self.size_bytes)


def test_version_is_loaded_once() -> None:
    async def scenario() -> list[ModelVersionId]:
        store = FakeStore()
        cache = ModelCache(store.load, 100)
        first = await cache.get(A)
        assert await cache.get(A) is first
        return store.loaded

    assert asyncio.run(scenario()) == [A]


def test_least_recently_used_version_is_evicted() -> None:
    async def scenario() -> tuple[Any, int, list[ModelVersionId]]:
        store = FakeStore()
        cache = ModelCache(store.load, 20)
        for version in (A, B, A, C, A, B):
            await cache.get(version)
        return cache.versions, cache.size_bytes, store.loaded

    assert asyncio.run(scenario()) == ((A, B), 20, [A, B, C, B])


def test_model_larger_than_the_cache_is_served_and_evicts_all_others() -> None:
    async def scenario() -> tuple[ModelVersionId, ...]:
        store = FakeStore()
        cache = ModelCache(store.load, 20)
        await cache.get(A)
        store.size_bytes = 500
        await cache.get(B)
        return cache.versions

    assert asyncio.run(scenario()) == (B,)


def test_concurrent_requests_share_one_load_even_if_the_first_is_cancelled() -> None:
    async def scenario() -> list[ModelVersionId]:
        store = FakeStore()
        store.finish_loads.clear()
        cache = ModelCache(store.load, 100)
        first, second = (asyncio.ensure_future(cache.get(A)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        store.finish_loads.set()
        assert isinstance(await second, Echo)
        return store.loaded

    assert asyncio.run(scenario()) == [A]


def test_failed_load_is_reported_and_tried_again() -> None:
    async def scenario() -> tuple[Any, list[ModelVersionId]]:
        store = FakeStore()
        cache = ModelCache(store.load, 100)
        store.missing.add(A)
        with pytest.raises(MissingError):
            await cache.get(A)
        store.missing.clear()
        await cache.get(A)
        return cache.versions, store.loaded

    assert asyncio.run(scenario()) == ((A,), [A, A])
