"""Services of other hosts: sessions reach them by TLS with certificates of both sides, and nobody else does.

A session's side is the bridge itself with a fake database, and the service's side is its server in a thread.
"""

import contextlib
import json
import random
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from indb_tensile.controller.service_certificates import ServiceCertificates
from indb_tensile.sql_api import remote_service
from indb_tensile.sql_api.refusals import RefusalError
from indb_tensile.sql_api.service_connection import ServiceConnection
from tests.certificates import Authority, new_authority
from tests.e2e.network_namespaces import other_namespace, why_impossible
from tests.sql_api.fakes import FakePlpy, plpy_with
from worker.serving import tls_listener
from worker.serving.tls_listener import TlsListener, certificate_names

from .fakes import DEADLINE_S, IDENTITY, wait_until
from .server_thread import ServerThread

PREDICT = b'{"verb": "predict", "version": 1, "kind": "value"}'
CLIENT = "tensile-database"  # the name in the certificate of the database's host


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return new_authority(tmp_path_factory.mktemp("tls") / "ca")


@pytest.fixture(scope="module")
def service_files(authority: Authority) -> Path:
    names = "IP:127.0.0.1,DNS:gpu1.example.org"
    return authority.sign(authority.directory / "service", "gpu1", names=names, usage="serverAuth")


@pytest.fixture(scope="module")
def client_files(authority: Authority) -> Path:
    return authority.sign(authority.directory / "client", CLIENT, usage="clientAuth")


Serve = Callable[[Path], ServerThread]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """A function that starts a server with the certificates in a directory."""
    started: list[ServerThread] = []

    def start(files: Path) -> ServerThread:
        certificates = ServiceCertificates(files)

        def listen() -> TlsListener:
            return TlsListener("127.0.0.1", 0, certificates, client_name=CLIENT)

        started.append(ServerThread(tmp_path / f"sockets-{len(started)}", -1, listen))
        return started[-1]

    yield start
    for server in started:
        server.stop()


def address_of(server: ServerThread) -> str:
    assert server.remote is not None
    return server.remote.address


def session(files: Path | None, *addresses: str, host_name: str = "127.0.0.1") -> FakePlpy:
    """A session of a database whose catalog has services at these addresses."""
    facts: dict[str, Any] = {
        "directory": None,
        "names": None,
        "addresses": list(addresses),
        "host_names": [host_name] * len(addresses),
        "tls_directory": files and str(files),
        "installation": IDENTITY.installation,
        "server_start": IDENTITY.server_start,
        "standby": False,
    }
    return plpy_with(services=[facts])


def predicted(plpy: FakePlpy, *rows: bytes) -> Any:
    with contextlib.closing(ServiceConnection()) as connection:
        return json.loads(connection.exchange(plpy, PREDICT, list(rows)))


def refusal(plpy: FakePlpy) -> RefusalError:
    with pytest.raises(RefusalError) as caught:
        predicted(plpy, b"1")
    assert (caught.value.sqlstate, caught.value.message) == ("57P03", "no service answers")
    return caught.value


def test_a_session_predicts_by_the_service_of_another_host(
    serve: Serve, service_files: Path, client_files: Path
) -> None:
    server = serve(service_files)
    long = json.dumps("x" * 2_000_000).encode()  # many records of TLS in both directions

    answer = predicted(session(client_files, address_of(server), host_name="gpu1.example.org"), b"1", long)

    assert answer == {"ok": True, "result": {"values": [1, "x" * 2_000_000]}}


def test_each_fault_of_a_certificate_is_named_with_a_way_out(
    serve: Serve, authority: Authority, service_files: Path, client_files: Path, tmp_path: Path
) -> None:
    address = address_of(serve(service_files))
    stranger = new_authority(tmp_path / "stranger", "stranger").sign(tmp_path / "strange", CLIENT)

    wrong_name = refusal(session(client_files, address, host_name="gpu2.example.org"))
    assert wrong_name.detail == f'Tried {address}: its certificate is not valid for "gpu2.example.org".'
    assert "TENSILE_SERVICE_HOST_NAME" in wrong_name.hint

    wrong_authority = refusal(session(stranger, address))
    assert f"its certificate is not from the authority in {stranger}/ca.crt" in wrong_authority.detail

    (stranger / "ca.crt").write_bytes((authority.directory / "ca.crt").read_bytes())
    strange_client = refusal(session(stranger, address))
    assert (
        strange_client.detail
        == f"Tried {address}: it ended the connection, as it does if it refuses this server's certificate "
        f"{stranger}/tls.crt."
    )
    assert "openssl x509" in strange_client.hint

    other = authority.sign(tmp_path / "other", "gpu2", names="DNS:gpu2.example.org")
    assert refusal(session(other, address)).detail == (
        f"Tried {address}: its service_client_name is {CLIENT}, and this server's certificate is for "
        "gpu2.example.org, gpu2."
    )
    service_as_client = refusal(session(service_files, address))
    assert "as it does if it refuses this server's certificate" in service_as_client.detail

    expired = serve(authority.sign(tmp_path / "expired", "gpu1", names="IP:127.0.0.1", end="20210101000000Z"))
    old = refusal(session(client_files, address_of(expired)))
    assert "its certificate was refused: certificate has expired" in old.detail
    assert "Renew tls.crt on that host" in old.hint


def test_each_fault_of_the_files_on_the_databases_host_is_named(authority: Authority, tmp_path: Path) -> None:
    address = "127.0.0.1:1"
    assert "the setting tls_directory is not set" in refusal(session(None, address)).detail

    files = authority.sign(tmp_path / "client", CLIENT)
    (files / "tls.key").chmod(0o644)
    readable = refusal(session(files, address))
    assert f"{files}/tls.key has mode 0644: other system users could use it" in readable.detail
    assert readable.hint == f"Run: chmod 0600 {files}/tls.key"

    (files / "tls.key").chmod(0o600)
    (files / "ca.crt").write_text("nothing")
    assert f"{files}/ca.crt cannot be used: " in refusal(session(files, address)).detail

    (files / "ca.crt").unlink()
    assert f"{files}/ca.crt cannot be read: No such file or directory" in refusal(session(files, address)).detail


def test_a_process_that_speaks_no_tls_is_named(client_files: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"

        def greet() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"220 mail.example.org ESMTP\r\n")
                connection.recv(1)

        speaker = threading.Thread(target=greet)
        speaker.start()
        assert "the process that listens there does not speak TLS" in refusal(session(client_files, address)).detail
        speaker.join(DEADLINE_S)


def test_the_next_service_is_asked_after_one_that_does_not_answer(
    serve: Serve, service_files: Path, client_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_service, "HANDSHAKE_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as hanging:  # the kernel accepts connections, and no process answers
        addresses = [f"127.0.0.1:{hanging.getsockname()[1]}", "localhost:1", "127.0.0.1:1"]

        assert predicted(session(client_files, *addresses, address_of(serve(service_files))), b"7")["ok"]
        failed = refusal(session(client_files, *addresses))

    assert failed.detail == (
        f"Tried {addresses[0]}: it accepts connections but makes no TLS handshake within 0 s; "
        "localhost:1: its address is not an IP address with a port; 127.0.0.1:1: Connection refused."
    )


def test_a_cancel_ends_the_wait_for_a_handshake(client_files: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        plpy = session(client_files, f"127.0.0.1:{hanging.getsockname()[1]}")
        plpy.cancelled = True
        with pytest.raises(plpy.SPIError, match="canceling statement"):
            predicted(plpy, b"1")


def test_a_stranger_is_told_nothing(serve: Serve, service_files: Path, authority: Authority) -> None:
    host, _, port = address_of(serve(service_files)).partition(":")
    with socket.create_connection((host, int(port)), DEADLINE_S) as plain:
        plain.sendall(b"\0\0\0\x02{}")
        assert b"protocol" not in plain.recv(1000)
    context = ssl.create_default_context(cafile=authority.directory / "ca.crt")
    with (
        socket.create_connection((host, int(port)), DEADLINE_S) as plain,
        context.wrap_socket(plain, server_hostname=host) as nobody,  # without a certificate
        contextlib.suppress(OSError),
    ):
        assert nobody.recv(1000) == b""
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection((host, int(port)), DEADLINE_S) as plain,
        pytest.raises(OSError),
    ):
        context.wrap_socket(plain, server_hostname=host)


def test_silent_connections_keep_nobody_out_and_end(
    serve: Serve, service_files: Path, client_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_listener, "MOST_HANDSHAKES", 3)
    monkeypatch.setattr(tls_listener, "HANDSHAKE_S", 0.5)
    server = serve(service_files)
    host, _, port = address_of(server).partition(":")
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection((host, int(port)), DEADLINE_S)) for _ in range(10)]
        for connection in silent[:6]:  # the oldest handshakes end at once, to make room for new ones
            assert connection.recv(1) == b""

        assert predicted(session(client_files, address_of(server)), b"7")["ok"]

        for connection in silent[6:]:
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""
    wait_until(lambda: server.server.connection_count == 0)


@pytest.mark.nightly
def test_a_flood_of_broken_handshakes_delays_no_session(
    serve: Serve, service_files: Path, client_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silent connections, noise, hellos that are cut off and whole ones, more than may be open at a time."""
    monkeypatch.setattr(tls_listener, "MOST_HANDSHAKES", 32)
    server = serve(service_files)
    host, _, port = address_of(server).partition(":")
    draw, context = random.Random(7), ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    hello_in, hello_out = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(hello_in, hello_out).do_handshake()
    hello = hello_out.read()
    with contextlib.ExitStack() as stack:
        for number in range(400):
            peer = stack.enter_context(socket.create_connection((host, int(port)), DEADLINE_S))
            kinds = (b"", draw.randbytes(draw.randrange(1, 4000)), hello[: draw.randrange(1, len(hello))], hello)
            with contextlib.suppress(OSError):
                peer.sendall(kinds[number % 4])
            if number % 20 == 0:
                assert predicted(session(client_files, address_of(server)), b"7")["ok"]
    wait_until(lambda: server.server.connection_count == 0)


def test_a_renewed_certificate_is_read_without_a_restart(
    serve: Serve, authority: Authority, client_files: Path, tmp_path: Path
) -> None:
    files = authority.sign(tmp_path / "renewed", "gpu1", names="IP:127.0.0.1", end="20210101000000Z")
    plpy = session(client_files, address_of(serve(files)))
    assert "expired" in refusal(plpy).detail

    authority.sign(files, "gpu1", names="IP:127.0.0.1")

    assert predicted(plpy, b"7")["ok"]


def test_stop_ends_every_connection_and_the_session_goes_on_with_another_service(
    serve: Serve, service_files: Path, client_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_listener, "SHUTDOWN_S", 0.05)
    first, second = serve(service_files), serve(service_files)
    plpy = session(client_files, address_of(first), address_of(second))
    with contextlib.closing(ServiceConnection()) as connection:
        assert json.loads(connection.exchange(plpy, PREDICT, [b"1"]))["ok"]
        assert first.server.connection_count == 1

        first.stop()
        assert first.server.connection_count == 0, "this session confirms nothing, because it reads nothing now"

        assert json.loads(connection.exchange(plpy, PREDICT, [b"2"]))["ok"]
        assert second.model.passes == [[2]]


def test_a_session_whose_only_service_ends_gets_an_error_and_goes_on_when_one_is_there_again(
    serve: Serve, service_files: Path, client_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_listener, "SHUTDOWN_S", 0.05)
    server = serve(service_files)
    with contextlib.closing(ServiceConnection()) as connection:
        plpy = session(client_files, address_of(server))
        assert json.loads(connection.exchange(plpy, PREDICT, [b"1"]))["ok"]
        server.stop()

        with pytest.raises(RefusalError) as caught:
            connection.exchange(plpy, PREDICT, [b"2"])
        assert (caught.value.sqlstate, caught.value.message) == ("57P03", "no service answers")
        assert caught.value.detail == f"Tried {address_of(server)}: Connection refused."

        plpy = session(client_files, address_of(serve(service_files)))
        assert json.loads(connection.exchange(plpy, PREDICT, [b"3"]))["ok"]


@pytest.mark.nightly
def test_a_link_that_is_cut_within_an_answer_ends_the_wait_with_an_error(
    service_files: Path, client_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason := why_impossible():
        pytest.skip(reason)
    quick = {"TCP_KEEPIDLE": 1, "TCP_KEEPINTVL": 1, "TCP_USER_TIMEOUT": 3000}
    usual = remote_service._NOTICE_DEAD_HOSTS
    options = [(level, name, quick.get(name, value)) for level, name, value in usual]
    monkeypatch.setattr(remote_service, "_NOTICE_DEAD_HOSTS", options)
    with other_namespace() as there:
        command = [sys.executable, "-c", _HALF_ANSWER, there.ranks.there, service_files, IDENTITY.installation]
        with subprocess.Popen(there.command(*map(str, command)), stdout=subprocess.PIPE, text=True) as far:
            assert far.stdout is not None
            plpy = session(client_files, f"{there.ranks.there}:{far.stdout.readline().strip()}")
            with contextlib.closing(ServiceConnection()) as connection:
                connection.send(plpy, PREDICT, [b"1"])
                assert far.stdout.readline() == "half\n"
                there.ranks.cut()
                with pytest.raises(RefusalError) as caught:
                    connection.receive(plpy)
            far.terminate()
    assert (caught.value.sqlstate, caught.value.message) == ("57P03", "no service answers")
    assert caught.value.detail == "The connection broke: the service closed the connection."  # Python reads it so


# A service that greets, and answers its first request with half of a frame.
_HALF_ANSWER = """
import json, pathlib, socket, ssl, struct, sys, time
address, files, installation = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=files / "ca.crt")
context.load_cert_chain(files / "tls.crt", files / "tls.key")
with socket.create_server((address, 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    connection = context.wrap_socket(listener.accept()[0], server_side=True)
    greeting = json.dumps({"protocol": 6, "installation": installation}).encode()
    connection.sendall(struct.pack(">I", len(greeting)) + greeting)
    connection.recv(1000)
    connection.sendall(struct.pack(">I", 1000) + bytes(500))
    print("half", flush=True)
    time.sleep(600)
"""


def test_names_of_a_certificate_are_its_dns_names_and_its_common_name() -> None:
    certificate = {
        "subject": ((("countryName", "AQ"),), (("commonName", "db1"),)),
        "subjectAltName": (("DNS", "db1.example.org"), ("IP Address", "10.0.0.1"), ("DNS", "db1")),
    }
    assert certificate_names(certificate) == ["db1.example.org", "db1"]
