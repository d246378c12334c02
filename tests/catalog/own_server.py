"""Make a PostgreSQL installation for a test, to which extensions can be added without changing the machine's own.

PostgreSQL finds its libraries and shared files relative to its program. A copy of the programs, beside links to all
other files, is therefore an installation whose folder `extension` belongs to the test.
"""

import shutil
import subprocess
from pathlib import Path

from indb_tensile.cluster import Cluster, Programs, find_programs, system_user

_COPIED = ("postgres", "initdb", "pg_ctl", "pg_config")


def own_server(directory: Path) -> tuple[Cluster, Path]:
    """Return a cluster that is not created yet, and the folder for its extensions."""
    installed = find_programs()
    directories = {name: Path(_pg_config(installed, name)) for name in ("bindir", "sharedir", "pkglibdir")}
    bin_directory = _below(directory, directories["bindir"])
    bin_directory.mkdir(parents=True)
    for name in _COPIED:
        shutil.copy2(directories["bindir"] / name, bin_directory / name)
    library = _below(directory, directories["pkglibdir"])
    library.parent.mkdir(parents=True, exist_ok=True)
    library.symlink_to(directories["pkglibdir"])
    share = _below(directory, directories["sharedir"])
    extensions = share / "extension"
    extensions.mkdir(parents=True)
    for source in (*directories["sharedir"].iterdir(), *(directories["sharedir"] / "extension").iterdir()):
        target = share / source.relative_to(directories["sharedir"])
        if not target.exists():
            target.symlink_to(source)
    programs = Programs(major=installed.major, directory=bin_directory)
    return Cluster(directory=directory / "c", programs=programs, system_user=system_user()), extensions


def _below(directory: Path, path: Path) -> Path:
    return directory / path.relative_to("/")


def _pg_config(programs: Programs, name: str) -> str:
    completed = subprocess.run([programs.path("pg_config"), f"--{name}"], capture_output=True, text=True, check=True)
    return completed.stdout.strip()
