"""The packages of Debian with what they depend on: pairs of a query and an item, and texts of skewed lengths."""

import re
import subprocess
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from indb_tensile.bench.harness.tables.debian_descriptions import require_packages, section_table
from indb_tensile.bench.harness.tables.sample_tables import SampleTable, make_table
from indb_tensile.learning.decoding.jsonrows import column_of
from indb_tensile.learning.storage.columns import ColumnKind, TableData

_NAME = re.compile(r"\s*([a-z0-9][a-z0-9+.-]+)")


class Package(NamedTuple):
    """A package, its section without the archive, the first line of its description, and what it depends on."""

    name: str
    section: str
    description: str
    needs: tuple[str, ...]


def dependency_table(packages: int, seed: int) -> TableData:
    """Return a row for each dependency of this many packages, which the seed draws: its name, and that as words.

    Raises MissingError on a machine without apt, and without its lists of packages.
    """
    require_packages()
    listed = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, check=True, encoding="utf-8")
    known = {own.name: own for own in parse_dependencies(listed.stdout.splitlines()) if own.needs}
    names = sorted(known)
    drawn = np.random.default_rng(seed).permutation(len(names))[:packages]
    rows = [(own, need) for own in (known[names[place]] for place in drawn) for need in own.needs]
    columns = {
        name: column_of(name, ColumnKind.TEXT, [getattr(own, name) for own, _ in rows])
        for name in ("name", "section", "description")
    }
    needs = [need for _, need in rows]
    words = [need.replace("-", " ") for need in needs]
    columns |= {
        "needs": column_of("needs", ColumnKind.TEXT, needs),
        "words": column_of("words", ColumnKind.TEXT, words),
    }
    return make_table(columns)


def package_texts() -> SampleTable:
    """Return `description` and `section` of each package; the description goes on with what the package needs.

    Most of these texts are short and some are very long. Raises MissingError as `dependency_table` does.
    """
    require_packages()
    listed = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, check=True, encoding="utf-8")
    packages = parse_dependencies(listed.stdout.splitlines())
    return section_table((" ".join((own.description, *own.needs)), own.section) for own in packages)


def parse_dependencies(lines: Iterable[str]) -> Iterator[Package]:
    """Yield each package that has a section and a description. Of alternatives it depends on the first one."""
    fields: dict[str, str] = {}
    for line in (*lines, ""):
        if line:
            name, _, value = line.partition(": ")
            if not line[0].isspace():
                fields[name] = value
            continue
        description = fields.get("Description") or fields.get("Description-en")
        if description and {"Package", "Section"} <= fields.keys():
            matches = (_NAME.match(part) for part in fields.get("Depends", "").split(","))
            needs = tuple(dict.fromkeys(match[1] for match in matches if match))
            yield Package(fields["Package"], fields["Section"].rpartition("/")[2], description, needs)
        fields = {}
