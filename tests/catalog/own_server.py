"""A PostgreSQL of the test's own, into whose share folder extensions can be placed without touching the machine's.

PostgreSQL finds its libraries and shared files relative to its program. A copy of the programs, beside links to
everything else, is therefore a server whose folder `extension` belongs to us.
"""

import shutil
import subprocess
from pathlib import Path

from indb_tensile.cluster import Cluster, Programs, find_programs, system_user

_COPIED = ("postgres", "initdb", "pg_ctl", "pg_config")


def own_server(directory: Path) -> tuple[Cluster, Path]:
    """A cluster, not created yet, and the folder for its extensions."""
    installed = find_programs()
    where = {name: Path(_ask(installed, name)) for name in ("bindir", "sharedir", "pkglibdir")}
    bin_directory = _below(directory, where["bindir"])
    bin_directory.mkdir(parents=True)
    for name in _COPIED:
        shutil.copy2(where["bindir"] / name, bin_directory / name)
    library = _below(directory, where["pkglibdir"])
    library.parent.mkdir(parents=True, exist_ok=True)
    library.symlink_to(where["pkglibdir"])
    share = _below(directory, where["sharedir"])
    extensions = share / "extension"
    extensions.mkdir(parents=True)
    for source in (*where["sharedir"].iterdir(), *(where["sharedir"] / "extension").iterdir()):
        target = share / source.relative_to(where["sharedir"])
        if not target.exists():
            target.symlink_to(source)
    programs = Programs(major=installed.major, directory=bin_directory)
    return Cluster(directory=directory / "c", programs=programs, system_user=system_user()), extensions


def _below(directory: Path, path: Path) -> Path:
    return directory / path.relative_to("/")


def _ask(programs: Programs, name: str) -> str:
    done = subprocess.run([programs.path("pg_config"), f"--{name}"], capture_output=True, text=True, check=True)
    return done.stdout.strip()
