"""Check how the service identifies the system user of a peer."""

import os
import socket
from dataclasses import dataclass

import pytest

from indb_tensile.errors import DatabaseError
from worker.serving.peer import peer_uid, server_uid, user_name


@dataclass
class FakeConnection:
    """A database connection, reduced to its socket."""

    socket: socket.socket

    def fileno(self) -> int:
        return self.socket.fileno()


def test_kernel_reports_the_user_of_the_peer() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert peer_uid(ours) == os.geteuid()
        assert server_uid(FakeConnection(ours)) == os.geteuid()
        ours.send(b"still open")
        assert theirs.recv(100) == b"still open"


def test_user_of_a_server_over_tcp_is_unknown() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as connection,
        pytest.raises(DatabaseError, match="over TCP") as caught,
    ):
        server_uid(FakeConnection(connection))
    assert "TENSILE_SERVICE_PEER_UID" in caught.value.hint


def test_user_without_a_name_is_shown_by_number() -> None:
    assert user_name(os.geteuid()) != str(os.geteuid())
    assert user_name(3_999_999_999) == "3999999999"
