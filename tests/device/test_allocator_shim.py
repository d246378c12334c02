"""Tensors are served from the arena, and no other memory is, in a process that was started with the shim."""

from typing import Any

import pytest

from indb_tensile.device import allocator_shim
from indb_tensile.device.allocator_shim import LIBRARY, ArenaServing, preload_environment
from tests.device.preloaded import ask


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    return ask("tests.device.serving_process")


def test_children_of_a_preloaded_process_run_without_the_shim(answers: dict[str, Any]) -> None:
    assert answers["environment_of_children"] == [None, "None", "False"]


def test_tensors_are_in_the_arena_only_while_they_are_served(answers: dict[str, Any]) -> None:
    assert answers["tensors"] == [False, True, True, True, False]


def test_scratch_of_other_libraries_is_ordinary_memory(answers: dict[str, Any]) -> None:
    scratch = answers["another_librarys_scratch"]
    assert scratch.pop("by a convolution") > 0
    assert scratch == {"inside": 0, "direct": 1, "direct served": 0}


def test_a_resized_storage_takes_and_frees_its_memory(answers: dict[str, Any]) -> None:
    assert answers["resized"] == [[True, 1000], [False, 0], [True, 70_000], [True, 10], [False, 0]]


def test_a_tensor_may_be_freed_by_any_thread(answers: dict[str, Any]) -> None:
    before, meanwhile, after = answers["freed_by_another_thread"]
    assert (meanwhile - before, after - before) == (4000, 0)


def test_another_thread_is_not_served_and_cannot_start_serving(answers: dict[str, Any]) -> None:
    message = "torch's tensors cannot be served from the device's memory: Device or resource busy"
    assert answers["allocated_by_another_thread"] == [False, message, True]


def test_openmp_threads_are_served_if_the_thread_that_uses_them_is(answers: dict[str, Any]) -> None:
    assert answers["allocated_by_openmp"] == {"served": 4, "by workers": 3, "another thread's": 0}


def test_a_forked_child_leaves_the_arena_to_its_parent(answers: dict[str, Any]) -> None:
    refused = "torch's tensors cannot be served from the device's memory: No child processes"
    assert answers["forked"] == [0, f"False {refused}", True, True]


def test_a_tensor_refused_by_a_full_arena_is_in_ordinary_memory_and_counted(answers: dict[str, Any]) -> None:
    assert answers["full"] == {"inside": [False, True], "sum": 2 << 20, "refused": 1, "counted": 4000}


def test_the_shim_is_preloaded_before_other_libraries() -> None:
    assert preload_environment({"HOME": "/"}) == {"HOME": "/", "LD_PRELOAD": str(LIBRARY)}
    assert preload_environment({"LD_PRELOAD": "/a.so:/b.so"}) == {"LD_PRELOAD": f"{LIBRARY} /a.so:/b.so"}


def test_without_the_shim_no_tensor_is_served_and_one_warning_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    allocator_shim._warn_not_preloaded.cache_clear()  # another test may have logged the warning
    assert ArenaServing.private() is None
    assert ArenaServing.of(0) is None
    assert ArenaServing.of(0) is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "_shim.so is not preloaded: tensors are in ordinary memory" in caplog.text
