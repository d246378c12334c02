import os
import socket
import stat
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


def test_the_directory_can_be_entered_and_the_socket_written_by_everybody_whatever_the_umask(directory: Path) -> None:
    before = os.umask(0o077)
    try:
        endpoint = Endpoint(directory, "worker-1")
    finally:
        os.umask(before)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o755
    assert stat.S_IMODE(endpoint.path.stat().st_mode) == 0o666
    assert connects(endpoint.path)
    endpoint.close()


def test_nothing_is_left_when_it_closes(directory: Path) -> None:
    Endpoint(directory, "worker-1").close()
    assert list(directory.iterdir()) == []


def test_a_socket_left_by_a_dead_service_is_replaced(directory: Path) -> None:
    directory.mkdir(mode=0o755)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(directory / "worker-1.sock"))
    assert not connects(directory / "worker-1.sock")
    endpoint = Endpoint(directory, "worker-1")
    assert connects(endpoint.path)
    assert [path.name for path in directory.iterdir()] == ["worker-1.sock"]
    endpoint.close()


def test_one_that_closes_late_leaves_its_successors_socket_in_place(directory: Path) -> None:
    old = Endpoint(directory, "worker-1")
    new = Endpoint(directory, "worker-1")
    old.close()
    assert connects(new.path)
    new.close()


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777, 0o1777])
def test_a_directory_that_others_may_write_to_is_refused(directory: Path, mode: int) -> None:
    directory.mkdir()
    directory.chmod(mode)
    with pytest.raises(UnavailableError, match="others could put their own socket there") as caught:
        Endpoint(directory, "worker-1")
    assert caught.value.hint == f"run: chmod 0755 {directory}"
    assert list(directory.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
def test_a_directory_of_another_user_is_refused(directory: Path) -> None:
    directory.mkdir(mode=0o755)
    os.chown(directory, 65534, -1)
    with pytest.raises(UnavailableError, match=r"belongs to .*, who could replace the socket"):
        Endpoint(directory, "worker-1")


def test_a_path_that_is_too_long_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="the system allows 107"):
        Endpoint(tmp_path / ("d" * 100), "worker-1")


def test_a_directory_that_cannot_be_made_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnavailableError, match=r"file/below cannot be made: Not a directory"):
        Endpoint(tmp_path / "file" / "below", "worker-1")
