"""Check where the page may listen, and which names of it are known."""

from pathlib import Path

import pytest

from indb_tensile.errors import RequestError
from indb_tensile.web.listening_address import ListeningAddress, listening_address


def address(listen: str, **options: object) -> ListeningAddress:
    values: dict[str, object] = {"public": False, "certificate": None, "key": None, **options}
    return listening_address(listen, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("listen", "host", "port"),
    [
        ("127.0.0.1:9000", "127.0.0.1", 9000),
        ("127.0.0.1", "127.0.0.1", 8080),
        ("localhost:1", "127.0.0.1", 1),
        (":8081", "127.0.0.1", 8081),
        ("[::1]:8081", "::1", 8081),
        ("::1", "::1", 8080),
    ],
)
def test_loopback_needs_no_option(listen: str, host: str, port: int) -> None:
    assert (address(listen).host, address(listen).port) == (host, port)


def test_requests_may_name_loopback_by_any_of_its_names() -> None:
    assert address("127.0.0.1:80").hosts == {
        *("127.0.0.1:80", "localhost:80", "[::1]:80"),
        *("127.0.0.1", "localhost", "[::1]"),
    }
    assert "localhost" not in address("127.0.0.1:8080").hosts


def test_a_public_address_needs_the_option_tls_and_its_name(tmp_path: Path) -> None:
    pem = tmp_path / "pem"
    pem.touch()
    faults = []
    for options in ({}, {"public": True}, {"public": True, "certificate": pem, "key": pem}):
        with pytest.raises(RequestError) as caught:
            address("0.0.0.0:443", **options)
        faults.append(caught.value.message.partition("machines")[2])
        assert caught.value.hint

    assert faults == [
        "",
        ", and passwords and tokens would cross the network in plain text",
        ", and --host-name is missing",
    ]
    allowed = address("0.0.0.0:443", public=True, certificate=pem, key=pem, names=("GPU.example.org",))
    assert allowed.origin == "https://GPU.example.org:443"
    assert {"gpu.example.org", "gpu.example.org:443"} <= allowed.hosts
    assert "localhost" not in allowed.hosts


@pytest.mark.parametrize(
    ("listen", "fault"),
    [
        ("gpu.example.org:80", "is no IP address"),
        ("127.0.0.1:x", "is no port"),
        ("127.0.0.1:65536", "is no port"),
        ("127.0.0.1:-1", "is no port"),
        ("300.1.1.1:80", "is no IP address"),
    ],
)
def test_what_is_no_address_is_named(listen: str, fault: str) -> None:
    with pytest.raises(RequestError, match=fault) as caught:
        address(listen)
    assert listen in caught.value.message


def test_a_certificate_needs_its_key_and_both_have_to_be_readable(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="--key is missing"):
        address("127.0.0.1:1", certificate=tmp_path / "pem")
    with pytest.raises(RequestError, match="No such file"):
        address("127.0.0.1:1", certificate=tmp_path / "pem", key=tmp_path / "pem")
