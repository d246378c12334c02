import asyncio
from typing import Any

import pytest

from indb_tensile.errors import MissingError
from indb_tensile.job import ModelVersionId
from worker.serving.model_cache import CachedModel, ModelCache

from .fakes import Echo

A, B, C = (ModelVersionId(n) for n in (1, 2, 3))


class Shelf:
    """Loads any version of 10 bytes; waits while its gate is closed."""

    def __init__(self) -> None:
        self.loaded: list[ModelVersionId] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.size_bytes = 10
        self.missing: set[ModelVersionId] = set()

    async def load(self, version: ModelVersionId) -> CachedModel:
        self.loaded.append(version)
        await self.gate.wait()
        if version in self.missing:
            raise MissingError(f"there is no version {version}")
        return CachedModel(model=Echo(), size_bytes=self.size_bytes)


def test_a_version_is_loaded_once() -> None:
    async def scene() -> list[ModelVersionId]:
        shelf = Shelf()
        residents = ModelCache(shelf.load, 100)
        first = await residents.get(A)
        assert await residents.get(A) is first
        return shelf.loaded

    assert asyncio.run(scene()) == [A]


def test_the_least_recently_used_leaves_when_there_is_no_room() -> None:
    async def scene() -> tuple[Any, int, list[ModelVersionId]]:
        shelf = Shelf()
        residents = ModelCache(shelf.load, 20)
        for version in (A, B, A, C, A, B):
            await residents.get(version)
        return residents.versions, residents.size_bytes, shelf.loaded

    assert asyncio.run(scene()) == ((A, B), 20, [A, B, C, B])


def test_a_model_larger_than_the_room_is_served_and_stays_alone() -> None:
    async def scene() -> tuple[ModelVersionId, ...]:
        shelf = Shelf()
        residents = ModelCache(shelf.load, 20)
        await residents.get(A)
        shelf.size_bytes = 500
        await residents.get(B)
        return residents.versions

    assert asyncio.run(scene()) == (B,)


def test_those_who_ask_at_once_share_one_load_even_when_the_first_goes_away() -> None:
    async def scene() -> list[ModelVersionId]:
        shelf = Shelf()
        shelf.gate.clear()
        residents = ModelCache(shelf.load, 100)
        first, second = (asyncio.ensure_future(residents.get(A)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        shelf.gate.set()
        assert isinstance(await second, Echo)
        return shelf.loaded

    assert asyncio.run(scene()) == [A]


def test_a_load_that_fails_is_told_and_tried_again_next_time() -> None:
    async def scene() -> tuple[Any, list[ModelVersionId]]:
        shelf = Shelf()
        residents = ModelCache(shelf.load, 100)
        shelf.missing.add(A)
        with pytest.raises(MissingError):
            await residents.get(A)
        shelf.missing.clear()
        await residents.get(A)
        return residents.versions, shelf.loaded

    assert asyncio.run(scene()) == ((A,), [A, A])
