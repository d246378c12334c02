"""The placement benchmark reports each placement method, and no placement is smaller than its lower bound."""

import sys
from pathlib import Path

import pytest

from indb_tensile.bench.commands.placement import Instance, _interval, _read, deep, measure
from indb_tensile.bench.harness.planning.ortools_placement import solver
from indb_tensile.errors import MissingError


def test_each_method_has_a_row_and_none_is_below_the_load() -> None:
    rows = list(measure(deep(120), 1))
    assert [row["method"] for row in rows] == ["place", "best_fit", "first_fit", "caching"]
    for row in rows:
        assert row["size_bytes"] >= row["load_bound_bytes"]
        assert row["excess"] == round(row["size_bytes"] / row["load_bound_bytes"] - 1, 5)


def test_a_minimalloc_file_is_read_with_its_capacity_and_placed_within_it(tmp_path: Path) -> None:
    path = tmp_path / "T.12.csv"
    path.write_text("id,lower,upper,size\n0,0,1000,5\n1,1000,3000,7\n2,500,2000,5\n")
    instance = _read(path)
    assert (instance.name, instance.capacity_bytes) == ("minimalloc T", 12)
    assert [(i.first, i.stop, i.size_bytes) for i in instance.held] == [(0, 2, 5), (2, 4, 7), (1, 3, 5)]
    rows = {row["method"]: row["size_bytes"] for row in measure(instance, 1)}
    assert rows == {"place": 12, "search": 12, "best_fit": 12, "first_fit": 12}


def test_a_rival_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools.sat.python.cp_model", None)
    with pytest.raises(MissingError, match="--rival ortools needs OR-Tools, which is not installed"):
        solver()


def test_a_rival_that_is_installed_has_a_row_and_places_over_the_end_of_the_iteration() -> None:
    pytest.importorskip("ortools", reason="OR-Tools is not installed: pip install ortools")
    held = (_interval(0, 2, 5, 512), _interval(1, 1, 2, 1024), _interval(2, 0, 1, 512))
    instance = Instance(name="cycle", plan="given", held=held, count=4)
    rows = {row["method"]: row["size_bytes"] for row in measure(instance, 1, rival=True)}
    assert (rows["place"], rows["ortools"]) == (1024, 1024)
