import os
import socket
from dataclasses import dataclass

import pytest

from indb_tensile.errors import DatabaseError
from worker.serving.peer import peer_uid, server_uid, user_name


@dataclass
class Connected:
    """As much of a database connection as is looked at."""

    socket: socket.socket

    def fileno(self) -> int:
        return self.socket.fileno()


def test_the_kernel_says_who_is_at_the_other_end() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert peer_uid(ours) == os.geteuid()
        assert server_uid(Connected(ours)) == os.geteuid()
        ours.send(b"still open")
        assert theirs.recv(100) == b"still open"


def test_over_tcp_nobody_can_say_who_runs_the_server() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as connection,
        pytest.raises(DatabaseError, match="over TCP") as caught,
    ):
        server_uid(Connected(connection))
    assert "TENSILE_SERVICE_PEER_UID" in caught.value.hint


def test_a_user_without_a_name_is_shown_by_number() -> None:
    assert user_name(os.geteuid()) != str(os.geteuid())
    assert user_name(3_999_999_999) == "3999999999"
