"""Sockets that killed services have left are removed, and no others."""

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from indb_tensile.catalog import stored_checkpoints
from indb_tensile.controller.service_sockets import remove_left_sockets
from indb_tensile.job import WorkerId
from tests.catalog.enqueue import register
from tests.conftest import Database
from worker.serving.identity import socket_name, standby_socket_name

pytestmark = pytest.mark.postgres


def test_only_sockets_of_stopped_workers_at_which_nothing_listens_are_removed(
    database: Database, tmp_path: Path
) -> None:
    with database.connect("tensile_worker") as worker, ExitStack() as open_sockets:
        installation = str(stored_checkpoints.installation(worker))
        running, stopped = register(worker), register(worker)
        worker.execute("update tensile.workers set stopped_at = now() where worker_id = %s", (stopped,))
        deleted = WorkerId(max(running, stopped) + 1000)
        listening = WorkerId(deleted + 1)
        for number in (running, stopped, deleted, listening):
            own = open_sockets.enter_context(socket.socket(socket.AF_UNIX))
            own.bind(str(tmp_path / f"{socket_name(installation, number)}.sock"))
            if number == listening:
                own.listen()
        name = socket_name(installation, stopped)
        others = ["notes.txt", "abcdefabcdef-7.sock", f"{standby_socket_name(installation, 5432)}.sock"]
        for left in (f".{name}", f".{name}.lock", *others):
            (tmp_path / left).touch()
        kept = {*others, *(f"{socket_name(installation, number)}.sock" for number in (running, listening))}

        assert remove_left_sockets(worker, tmp_path) == "removed 4"
        assert {path.name for path in tmp_path.iterdir()} == kept
        assert remove_left_sockets(worker, tmp_path) == ""
        assert remove_left_sockets(worker, tmp_path / "missing") == remove_left_sockets(worker, None) == ""
