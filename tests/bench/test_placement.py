"""The placement benchmark reports each placement method, and no placement is smaller than its lower bound."""

from pathlib import Path

from indb_tensile.bench.commands.placement import _read, deep, measure


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
