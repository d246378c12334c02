"""Certificates for tests of TLS, made by the program openssl."""

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Authority:
    """An authority with its files in a directory, which signs certificates."""

    directory: Path

    def sign(
        self,
        to: Path,
        name: str,
        *,
        names: str = "",
        usage: str = "serverAuth,clientAuth",
        begin: str = "20200101000000Z",
        end: str = "20990101000000Z",
    ) -> Path:
        """Fill the directory `to` with tls.crt, tls.key and ca.crt, and return it.

        `name` is the common name, and `names` are alternative ones as openssl writes them, such as IP:127.0.0.1.
        """
        to.mkdir(exist_ok=True)
        request, extensions = to / "tls.csr", to / "extensions"
        _openssl("req", "-new", *_NEW_KEY, "-keyout", to / "tls.key", "-out", request, "-subj", f"/CN={name}")
        lines = ["basicConstraints=CA:FALSE", f"extendedKeyUsage={usage}"]
        extensions.write_text("\n".join([*lines, f"subjectAltName={names}" if names else ""]))
        authority = ("-cert", self.directory / "ca.crt", "-keyfile", self.directory / "ca.key")
        database = self.directory / "index.txt"
        database.touch()
        if not (serial := self.directory / "serial").exists():
            serial.write_text("01")
        configuration = self.directory / "ca.cnf"
        configuration.write_text(_CONFIGURATION.format(directory=self.directory))
        _openssl(
            *("ca", "-batch", "-notext", "-config", configuration, *authority, "-in", request),
            *("-out", to / "tls.crt", "-startdate", begin, "-enddate", end, "-extfile", extensions),
        )
        (to / "tls.key").chmod(0o600)
        (to / "ca.crt").write_bytes((self.directory / "ca.crt").read_bytes())
        return to


def new_authority(directory: Path, name: str = "tests") -> Authority:
    """Make the certificate and the key of an authority."""
    directory.mkdir(exist_ok=True)
    files = ("-keyout", directory / "ca.key", "-out", directory / "ca.crt")
    _openssl("req", "-x509", "-new", *_NEW_KEY, *files, "-subj", f"/CN={name}", "-days", "36500")
    return Authority(directory)


def _openssl(*arguments: object) -> None:
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_CONFIGURATION = """[ca]
default_ca = own
[own]
new_certs_dir = {directory}
database = {directory}/index.txt
default_md = sha256
policy = any
unique_subject = no
serial = {directory}/serial
[any]
commonName = supplied
"""
