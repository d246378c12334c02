"""PgBouncer in front of a test's database: a process of its own, on a Unix socket only."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from tests.conftest import ROLES, Database

DEADLINE_S = 60.0
_PORT = 6432


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled:
    """The database behind PgBouncer."""

    directory: Path
    database: Database

    def dsn(self, user: str) -> str:
        """A connection string for one of ROLES."""
        return make_conninfo(host=str(self.directory), port=_PORT, user=user, dbname=self.database.name)

    def connect(self, user: str) -> psycopg.Connection:
        """A connection in autocommit mode that prepares nothing on the server."""
        return psycopg.connect(self.dsn(user), autocommit=True, prepare_threshold=None)


@contextmanager
def pooled(database: Database, mode: str, settings: str = "") -> Iterator[Pooled]:
    """PgBouncer in this pool_mode, run by the cluster's system user: it refuses to run as root."""
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    assert program is not None, "pgbouncer is not installed: sh tests/run.sh installs it"
    directory = Path(tempfile.mkdtemp(prefix="tensile-pgbouncer-"))
    directory.chmod(0o755)
    users, configuration, log = directory / "users.txt", directory / "pgbouncer.ini", directory / "pgbouncer.log"
    users.write_text("".join(f'"{role}" ""\n' for role in ROLES))
    configuration.write_text(
        f"[databases]\n* = host={database.cluster.run} port=5432\n"
        f"[pgbouncer]\nlisten_addr =\nlisten_port = {_PORT}\nunix_socket_dir = {directory}\n"
        f"auth_type = trust\nauth_file = {users}\npool_mode = {mode}\nlogfile = {log}\n{settings}"
    )
    user = database.cluster.system_user
    as_root = os.geteuid() == 0
    if as_root:
        for path in (directory, users, configuration):
            shutil.chown(path, user)
    identity: dict[str, Any] = {"user": user, "extra_groups": []} if as_root else {}
    process = subprocess.Popen([program, "-q", str(configuration)], cwd="/", **identity)
    try:
        made = Pooled(directory=directory, database=database)
        _await(made, process, log)
        yield made
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(directory)


def _await(made: Pooled, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            made.connect("postgres").close()
        except psycopg.OperationalError as error:
            told = log.read_text() if log.exists() else str(error)
            assert process.poll() is None, told
            assert time.monotonic() < deadline, told
            time.sleep(0.02)  # the deadline is what counts
        else:
            return
