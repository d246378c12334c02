"""Check the service's socket file: who may connect, and that no other service takes it over."""

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from indb_tensile.errors import UnavailableError
from worker.serving.endpoint import Endpoint


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "sockets"


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


def test_every_user_can_connect_to_the_socket_whatever_the_umask(directory: Path) -> None:
    before = os.umask(0o077)
    try:
        endpoint = Endpoint(directory, "worker-1")
    finally:
        os.umask(before)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o755
    assert stat.S_IMODE(endpoint.path.stat().st_mode) == 0o666
    assert connects(endpoint.path)
    endpoint.close()


def test_closed_endpoint_leaves_no_file(directory: Path) -> None:
    Endpoint(directory, "worker-1").close()
    assert list(directory.iterdir()) == []


def test_socket_of_a_dead_service_is_replaced(directory: Path) -> None:
    directory.mkdir(mode=0o755)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(directory / "worker-1.sock"))
    assert not connects(directory / "worker-1.sock")
    endpoint = Endpoint(directory, "worker-1")
    assert connects(endpoint.path)
    assert [path.name for path in directory.iterdir()] == ["worker-1.sock"]
    endpoint.close()


def test_late_close_does_not_remove_the_successors_socket(directory: Path) -> None:
    old = Endpoint(directory, "worker-1")
    old.socket.close()  # no longer listens, and has not removed its file yet
    new = Endpoint(directory, "worker-1")
    old.close()
    assert connects(new.path)
    new.close()


def test_name_of_a_living_service_is_refused(directory: Path) -> None:
    old = Endpoint(directory, "worker-1")
    inode = old.path.stat().st_ino
    with pytest.raises(UnavailableError, match=r"another service listens on .*worker-1\.sock") as caught:
        Endpoint(directory, "worker-1")
    assert caught.value.hint.startswith("End that service's controller")
    assert old.path.stat().st_ino == inode
    assert [path.name for path in directory.iterdir()] == ["worker-1.sock"]
    old.close()


def test_name_of_a_service_with_a_full_accept_queue_is_refused(directory: Path) -> None:
    directory.mkdir(mode=0o755)
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waiting:
        busy.bind(str(directory / "worker-1.sock"))
        busy.listen(0)
        waiting.connect(str(directory / "worker-1.sock"))  # the queue is full now
        with pytest.raises(UnavailableError, match="another service listens"):
            Endpoint(directory, "worker-1")


_LISTEN = """
import sys
from pathlib import Path
from indb_tensile.errors import UnavailableError
from indb_tensile.worker.serving.endpoint import Endpoint
sys.stdin.readline()
try:
    endpoint = Endpoint(Path(sys.argv[1]), "worker-1")
    print("taken", flush=True)
    sys.stdin.readline()
except UnavailableError:
    print("refused", flush=True)
"""


@pytest.mark.nightly
def test_only_one_of_several_starting_services_gets_the_name_of_a_dead_service(directory: Path) -> None:
    directory.mkdir(mode=0o755)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(directory / "worker-1.sock"))
    command = [sys.executable, "-c", _LISTEN, str(directory)]
    started = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(4)]
    for process in started:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
    replies = []
    for process in started:
        assert process.stdout is not None
        replies.append(process.stdout.readline())
    for process in started:
        process.communicate()
    assert sorted(replies) == [b"refused\n"] * 3 + [b"taken\n"]


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777, 0o1777])
def test_directory_that_others_may_write_to_is_refused(directory: Path, mode: int) -> None:
    directory.mkdir()
    directory.chmod(mode)
    with pytest.raises(UnavailableError, match="others could put their own socket there") as caught:
        Endpoint(directory, "worker-1")
    assert caught.value.hint == f"Run: chmod 0755 {directory}"
    assert list(directory.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
def test_directory_of_another_user_is_refused(directory: Path) -> None:
    directory.mkdir(mode=0o755)
    os.chown(directory, 65534, -1)
    with pytest.raises(UnavailableError, match=r"belongs to .*, who could replace the socket"):
        Endpoint(directory, "worker-1")


def test_too_long_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="the system allows 107"):
        Endpoint(tmp_path / ("d" * 100), "worker-1")


def test_directory_that_cannot_be_created_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnavailableError, match=r"file/below cannot be created: Not a directory"):
        Endpoint(tmp_path / "file" / "below", "worker-1")
