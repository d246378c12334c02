"""The cache of values that follow from a graph: owned by its caller, bounded, and without effect on plans."""

import functools
import gc
import importlib
import pkgutil
import weakref
from collections import deque
from dataclasses import replace
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile import scheduler
from indb_tensile.scheduler.graph import Operator, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import liveness_peak
from indb_tensile.scheduler.plan_cache import CachedKind, GraphTable, PlanCache, cached
from indb_tensile.scheduler.planner import Workload, foresee, plan_jobs
from indb_tensile.scheduler.policies import POLICIES
from indb_tensile.scheduler.workload import least_bytes
from tests.nightly import some_examples
from tests.scheduler.strategies import links, several_workloads

_ANY: CachedKind[object] = CachedKind(name="any", most=2)
_OTHER: CachedKind[object] = CachedKind(name="other", most=2)


def test_a_value_is_made_once_for_each_kind_graph_and_key() -> None:
    graph, cache = _graph(), PlanCache()
    first, second = cache.get(_ANY, graph, ("a",), object), cache.get(_ANY, graph, ("b",), object)
    assert first is not second
    assert cache.get(_ANY, graph, ("a",), object) is first
    assert cache.get(_OTHER, graph, ("a",), object) is not first
    assert cache.get(_ANY, replace(graph), ("a",), object) is not first, "an equal graph is another graph"
    assert PlanCache().get(_ANY, graph, ("a",), object) is not first, "caches share nothing"


def test_without_a_cache_a_value_is_made_each_time() -> None:
    graph = _graph()
    assert cached(None, _ANY, graph, (), object) is not cached(None, _ANY, graph, (), object)


def test_only_the_latest_values_are_kept() -> None:
    graph, cache = _graph(), PlanCache()
    _, second, third = (cache.get(_ANY, graph, (key,), object) for key in (1, 2, 3))
    assert cache.get(_ANY, graph, (3,), object) is third
    assert cache.get(_ANY, graph, (2,), object) is second
    cache.get(_ANY, graph, (1,), object)  # is made anew
    assert cache.get(_ANY, graph, (2,), object) is not second


def test_a_failure_is_not_cached() -> None:
    graph, table = _graph(), GraphTable[float](2)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            table.get(graph, (), lambda: 1 / 0)
    assert table.get(graph, (), lambda: 1.0) == 1.0


def test_a_cached_value_is_freed_with_its_graph() -> None:
    graph, cache = _graph(), PlanCache()
    made = weakref.ref(cache.get(_ANY, graph, (), _Value))
    gc.collect()
    assert made() is not None
    del graph
    gc.collect()
    assert made() is None


def test_a_cached_value_is_freed_with_its_cache() -> None:
    graph, cache = _graph(), PlanCache()
    made = weakref.ref(cache.get(_ANY, graph, (), _Value))
    del cache
    gc.collect()
    assert made() is None
    assert graph.operators, "the graph lives on"


@some_examples()
@given(several_workloads(), links(), st.floats(0, 1), st.sampled_from(sorted(POLICIES)), st.booleans())
def test_plans_are_the_same_with_a_cache_of_earlier_plans(
    jobs: tuple[Workload, ...], link: Link, fraction: float, policy: str, phases: bool
) -> None:
    low = sum(map(least_bytes, jobs))
    high = sum(max(map(liveness_peak, job.graphs)) for job in jobs)
    cache = PlanCache()
    for budget_bytes in (high, low + int(fraction * (high - low)), low):
        planned = plan_jobs(jobs, budget_bytes=budget_bytes, link=link, policy=policy, phases=phases)
        again = plan_jobs(jobs, budget_bytes=budget_bytes, link=link, policy=policy, phases=phases, cache=cache)
        assert again == planned
        if isinstance(planned, tuple):
            assert foresee(jobs, planned, link=link, cache=cache) == foresee(jobs, planned, link=link)


def test_no_module_of_the_scheduler_keeps_a_cache_of_its_own() -> None:
    """Lookup tables that are complete when the module is imported are tuples, frozensets or mapping proxies."""
    kept = (PlanCache, GraphTable, dict, list, set, deque, weakref.WeakKeyDictionary, weakref.WeakValueDictionary)
    names = [m.name for m in pkgutil.walk_packages(scheduler.__path__, f"{scheduler.__name__}.")]
    assert len(names) > 70
    assert [cache for name in names for cache in _caches(importlib.import_module(name), kept)] == []


def _caches(module: ModuleType, kept: tuple[type, ...]) -> list[str]:
    caching = type(functools.lru_cache(int))
    return [
        f"{module.__name__}.{name}"
        for name, value in vars(module).items()
        if not name.startswith("__") and isinstance(value, (*kept, caching))
    ]


class _Value(set[int]):
    """A value that can be watched."""


def _graph() -> StepGraph:
    operator = Operator(name="op", signature="op", stage=Stage.FORWARD, reads=(), writes=(TensorId(0),))
    tensor = Tensor(id=TensorId(0), name="t", size_bytes=1, role=Role.ACTIVATION)
    return StepGraph(tensors=(tensor,), operators=(operator,))
