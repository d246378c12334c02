"""Starts `tensile web` and sends it what browsers send; measures the processor time of page and sessions."""

import contextlib
import http.client
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from psycopg.conninfo import make_conninfo

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.queries import parse
from indb_tensile.device.processor_times import process_s

_SQL = parse(Path(__file__).with_name("page_browsers.sql").read_text(encoding="utf-8"))


class PageBrowsers:
    """Browsers that are logged in as one role."""

    def __init__(self, port: int, link: str) -> None:
        self._port = port
        response = self._send(link, {})
        response.read()
        self._cookie = (response.getheader("set-cookie") or "").partition(";")[0]
        self.events = 0
        self._streams = 0
        self._open: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    def read(self, path: str) -> bytes:
        """Return the body of an answer."""
        response = self._send(path, {"cookie": self._cookie})
        if response.status != 200:
            raise RuntimeError(f"{path} was answered with status {response.status}")
        return response.read()

    def open(self, count: int, path: str = "/api/overview") -> None:
        """Open this many live pages in threads, wait until each has had its first event, and count from then on."""
        self._streams = 0
        for _ in range(count):
            threading.Thread(target=self._watch, args=(path,), daemon=True).start()
        deadline = time.monotonic() + 60
        while self._streams < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"only {self._streams} of {count} streams began within 60 s")
            time.sleep(0.05)
        self.events = 0

    def close(self) -> None:
        """Close all live pages."""
        with self._lock:
            ending, self._open = self._open, []
        for connection in ending:
            with contextlib.suppress(OSError):
                if connection.sock is not None:
                    connection.sock.shutdown(socket.SHUT_RDWR)  # which ends the thread that reads

    def _watch(self, path: str) -> None:
        connection = self._request(path, {"cookie": self._cookie})
        with self._lock:
            self._open.append(connection)
        response = connection.getresponse()
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            first = True
            while line := response.readline():
                if line.startswith(b"data:"):
                    with self._lock:
                        self.events += 1
                        self._streams += first
                    first = False

    def _send(self, path: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        return self._request(path, headers).getresponse()

    def _request(self, path: str, headers: dict[str, str]) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        connection.request("GET", path, headers=headers)
        return connection


@contextlib.contextmanager
def started_page(dsn: str) -> Iterator[tuple[subprocess.Popen[str], PageBrowsers]]:
    """Yield the process of a page on this database, and browsers of it."""
    command = [sys.executable, "-c", "from indb_tensile.cli.main import main; main()"]
    options = ["web", "--listen", "127.0.0.1:0", "--dsn", make_conninfo(dsn)]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = re.search(r"http://127\.0\.0\.1:(\d+)(/\S+)", process.stdout.readline())
        if address is None:
            raise RuntimeError("tensile web has printed no link")
        yield process, PageBrowsers(int(address[1]), address[2])
    finally:
        process.terminate()
        process.wait(timeout=30)
        if process.stdout is not None:
            process.stdout.close()


def page_processor_s(connection: Connection, pid: int) -> float:
    """Return the processor time of the page and of its sessions in the database."""
    sessions = [row[0] for row in connection.execute(_SQL["sessions"].encode())]
    return sum(processor_s(each) for each in (pid, *sessions))


def processor_s(pid: int) -> float:
    """Return the processor time of a process that still runs. Raises ProcessLookupError if it has ended."""
    used_s = process_s(pid)
    if used_s is None:
        raise ProcessLookupError(f"process {pid} has ended, so its processor time is not known")
    return used_s
