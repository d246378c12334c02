"""The files of a service's TLS: the manual's commands make good ones, and `tensile doctor` names each fault."""

import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from indb_tensile.cli import doctor
from indb_tensile.config import Settings
from indb_tensile.controller.service_certificates import ServiceCertificates, Validity, server_context, validity
from indb_tensile.errors import RequestError
from tests.certificates import Authority, new_authority
from tests.docs.pages import ROOT, Page


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return new_authority(tmp_path_factory.mktemp("tls") / "ca")


def finding(files: Path, name: str = "127.0.0.1") -> tuple[bool, str]:
    """Return what `tensile doctor` says of the files."""
    settings = Settings(
        service_address="127.0.0.1:0", service_tls_directory=str(files), service_host_name=name, devices=1
    )
    check = next(row for row in doctor.device(settings.environment()) if row["check"] == "service's certificate")
    return check["ok"], check["found"]


def test_the_manuals_commands_make_certificates_for_one_purpose_each(tmp_path: Path) -> None:
    (commands,) = (b.text for b in Page(ROOT / "docs/user/remote-services.md").blocks if b.info == "sh")
    subprocess.run(["sh", "-e", "-c", commands], cwd=tmp_path, check=True, capture_output=True)

    service, client = tmp_path / "gpu1", tmp_path / "database"
    server_context(service)
    now = datetime.now(UTC)
    assert validity(service, "gpu1.example.org").fault(now) == ""
    server_context(client)  # its key is as secret
    with pytest.raises(RequestError, match="unsuitable certificate purpose"):
        validity(client, "tensile-database")
    about = ["openssl", "x509", "-in", str(service / "tls.crt"), "-noout", "-ext", "basicConstraints"]
    assert b"CA:FALSE" in subprocess.run(about, check=True, capture_output=True).stdout  # it cannot sign others


def test_doctor_says_how_long_a_certificate_is_valid_and_names_each_fault(
    authority: Authority, tmp_path: Path
) -> None:
    files = authority.sign(tmp_path / "files", "gpu1", names="IP:127.0.0.1")
    certificate = files / "tls.crt"
    assert finding(files) == (True, f"{certificate}, for 127.0.0.1, is valid until 2099-01-01 00:00 UTC")
    passed, message = finding(files, "gpu2")
    assert (passed, "certificate is not valid for 'gpu2'" in message) == (False, True)

    (files / "tls.key").chmod(0o604)
    assert finding(files) == (False, f"{files}/tls.key has mode 0604: other system users could use it")
    (files / "tls.key").unlink()
    assert finding(files) == (False, f"{files}/tls.key cannot be read: No such file or directory")

    authority.sign(files, "gpu1", names="IP:127.0.0.1", end="20210101000000Z")
    assert finding(files) == (False, f"{certificate}, for 127.0.0.1, has expired on 2021-01-01 00:00 UTC")
    certificate.write_bytes(authority.sign(tmp_path / "other", "gpu1").joinpath("tls.crt").read_bytes())
    assert finding(files)[1].startswith(f"{certificate} with tls.key cannot be used: ")


def test_a_certificate_of_the_future_is_not_valid_yet() -> None:
    begin, end = datetime(2030, 1, 1, tzinfo=UTC), datetime(2031, 1, 1, tzinfo=UTC)
    valid = Validity(begin=begin, end=end)
    assert valid.fault(datetime(2029, 12, 31, tzinfo=UTC)) == "is not valid before 2030-01-01 00:00 UTC"
    assert valid.fault(begin) == ""


def test_half_replaced_files_leave_the_previous_certificate_in_use(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = authority.sign(tmp_path / "files", "gpu1")
    certificates = ServiceCertificates(files)
    first = certificates.context()
    (files / "tls.key").write_bytes(authority.sign(tmp_path / "other", "gpu1").joinpath("tls.key").read_bytes())

    assert certificates.context() is first
    assert "the previous certificate stays in use" in caplog.text

    (files / "tls.crt").write_bytes((tmp_path / "other" / "tls.crt").read_bytes())
    assert certificates.context() is not first


def test_files_are_read_again_when_only_the_mode_of_the_key_changes(authority: Authority, tmp_path: Path) -> None:
    files = authority.sign(tmp_path / "files", "gpu1")
    certificates = ServiceCertificates(files)
    first = certificates.context()
    newer = authority.sign(tmp_path / "other", "gpu1")
    (files / "tls.key").chmod(0o644)
    for name in ("tls.key", "tls.crt"):
        (files / name).write_bytes((newer / name).read_bytes())
    assert certificates.context() is first

    (files / "tls.key").chmod(0o600)
    assert certificates.context() is not first
