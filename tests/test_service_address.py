"""The address at which a service answers other hosts: never without certificates, and never an address of no host."""

import pytest

from indb_tensile.config import Settings, split_address
from indb_tensile.errors import RequestError


def test_an_address_is_an_ip_address_with_a_port() -> None:
    assert split_address("10.0.0.7:7443") == ("10.0.0.7", 7443)
    assert split_address("[fd00::7]:0") == ("fd00::7", 0)


NO_ADDRESSES = (
    *("gpu1:7443", "10.0.0.7", "10.0.0.7:", "10.0.0.7:65536", "10.0.0.7:+1", "fd00::7:1", "[10.0.0.7]:1"),
    *("0.0.0.0:1", "[::]:1", "224.0.0.1:1", "[fe80::1%eth0]:1", ":7443"),
)


@pytest.mark.parametrize("text", NO_ADDRESSES)
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match=r"service_address .* is needed"):
        Settings(service_address=text, service_tls_directory="/etc/tls")


def test_an_address_without_certificates_or_names_is_refused() -> None:
    for directory in ("", "tls"):
        with pytest.raises(RequestError, match=r"service_tls_directory .* tls.crt, tls.key and ca.crt is needed"):
            Settings(service_address="127.0.0.1:7443", service_tls_directory=directory)
    with pytest.raises(RequestError, match="service_host_name"):
        Settings(service_address="127.0.0.1:1", service_tls_directory="/etc/tls", service_host_name=".gpu1")
    with pytest.raises(RequestError, match="service_client_name"):
        Settings(service_address="127.0.0.1:1", service_tls_directory="/etc/tls", service_client_name="")
