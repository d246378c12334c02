"""The dependencies of packages are read as pairs, and rankings by popularity are told apart by section."""

import numpy as np
import pytest

from indb_tensile.bench.commands.pairs import prepare, section_metrics
from indb_tensile.bench.harness.tables.debian_dependencies import Package, parse_dependencies
from indb_tensile.bench.harness.tables.sample_tables import make_table
from indb_tensile.learning.decoding.jsonrows import column_of
from indb_tensile.learning.encoding.pair_encoding import popularity_metrics
from indb_tensile.learning.storage.columns import ColumnKind

LISTED = """Package: gzip
Section: utils
Depends: libc6 (>= 2.34), dpkg (>= 1.15.4) | install-info, libc6:any
Description: GNU compression utilities
 and further lines

Package: nothing
Description: has no section

Package: tools
Section: contrib/devel
Description-en: need nothing"""


def test_packages_are_read_with_the_first_of_alternatives() -> None:
    assert list(parse_dependencies(LISTED.splitlines())) == [
        Package("gzip", "utils", "GNU compression utilities", ("libc6", "dpkg")),
        Package("tools", "devel", "need nothing", ()),
    ]


@pytest.mark.nightly
def test_a_ranking_by_section_is_better_where_the_section_decides() -> None:
    rows = [(f"p{n}", f"s{n % 4}", f"text {n}", f"lib{n % 4}" if n % 3 else "libc") for n in range(400)]
    names = ("name", "section", "description", "needs")
    columns = {name: column_of(name, ColumnKind.TEXT, [row[at] for row in rows]) for at, name in enumerate(names)}
    columns["words"] = columns["needs"]
    prepared = prepare(make_table(columns), 0)
    items = prepared.test.targets.numpy()
    assert len(np.unique(items)) == 5
    by_section = section_metrics(prepared)["mrr"]
    assert by_section == pytest.approx(5 / 6, abs=0.1)  # the most frequent item, or the second one of the section
    assert popularity_metrics(prepared.train.targets.numpy(), items)["mrr"] < by_section
