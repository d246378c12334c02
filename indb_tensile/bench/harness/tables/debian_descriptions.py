"""The descriptions of Debian's packages with their sections: real texts that a machine with apt has."""

import shutil
import subprocess
from collections.abc import Iterable, Iterator

from indb_tensile.bench.harness.tables.sample_tables import SampleTable, make_table
from indb_tensile.errors import MissingError
from indb_tensile.job import Task
from indb_tensile.learning.decoding.jsonrows import column_of
from indb_tensile.learning.storage.columns import ColumnKind

FEWEST = 1000  # fewer packages are those of a machine whose lists of packages were never fetched
_WAY_OUT = "Run apt-get update on Debian."


def debian_descriptions() -> SampleTable:
    """Return the table of `apt-cache dumpavail`: `description`, and `section`, the target.

    Raises MissingError on a machine without apt, and without its lists of packages.
    """
    require_packages()
    listed = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, check=True, encoding="utf-8")
    pairs = list(parse_packages(listed.stdout.splitlines()))
    if len(pairs) < FEWEST:
        raise MissingError(f"apt-cache dumpavail lists {len(pairs)} packages with a description", hint=_WAY_OUT)
    return section_table(pairs)


def require_packages() -> None:
    """Raise MissingError on a machine without apt."""
    if shutil.which("apt-cache") is None:
        raise MissingError("there is no apt-cache on this machine", hint=_WAY_OUT)


def section_table(pairs: Iterable[tuple[str, str]]) -> SampleTable:
    """Return the table of these descriptions and sections."""
    descriptions, sections = zip(*pairs, strict=True)
    columns = {
        "description": column_of("description", ColumnKind.TEXT, list(descriptions)),
        "section": column_of("section", ColumnKind.TEXT, list(sections)),
    }
    return SampleTable(name="debian", table=make_table(columns), target="section", task=Task.CLASSIFICATION)


def parse_packages(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the whole description and the section, without its archive, of each package that has both."""
    fields: dict[str, list[str]] = {}
    name = ""
    for line in (*lines, ""):
        if not line:
            description = fields.get("Description") or fields.get("Description-en")
            if description and "Section" in fields:
                yield "\n".join(description), fields["Section"][0].rpartition("/")[2]
            fields, name = {}, ""
        elif line[0].isspace():
            fields.setdefault(name, []).append(line.strip())
        else:
            name, _, value = line.partition(":")
            fields[name] = [value.strip()]
