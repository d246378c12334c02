"""A second network namespace of this machine, joined to the first one by links that a test can cut.

A link that is set down answers nothing and sends no reset, as a cable that is pulled out. Needs root and iproute2.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A pair of network devices: `here` is the address in this namespace, `there` that in the other one."""

    device: str
    here: str
    there: str

    def cut(self) -> None:
        """Let no packet through."""
        _ip("link", "set", self.device, "down")

    def mend(self) -> None:
        """Let packets through again."""
        _ip("link", "set", self.device, "up")


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherNamespace:
    """The second namespace, with one link for the database and one between ranks."""

    name: str
    database: Link
    ranks: Link

    def command(self, *command: str) -> list[str]:
        """Return the command that runs a program in the namespace, in the process that is started."""
        return [str(shutil.which("ip", path=_PATH)), "netns", "exec", self.name, *command]


def why_impossible() -> str | None:
    """Return why this machine allows no second namespace; None if it does."""
    if os.geteuid() != 0:
        return "a network namespace needs root"
    if shutil.which("ip", path=_PATH) is None:
        return "a network namespace needs the program ip of iproute2"
    name = f"tensile-try-{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], env={"PATH": _PATH}, capture_output=True, check=False)
    if tried.returncode:
        return f"this machine refuses a network namespace: {tried.stderr.decode(errors='replace').strip()}"
    _ip("netns", "delete", name)
    return None


@contextmanager
def other_namespace() -> Iterator[OtherNamespace]:
    """Yield a second namespace; its links go with it."""
    number = os.getpid()
    name = f"tensile-{number}"
    _ip("netns", "add", name)
    try:
        _ip("-n", name, "link", "set", "lo", "up")
        yield OtherNamespace(name=name, database=_link(name, number, 0), ranks=_link(name, number, 1))
    finally:
        _ip("netns", "delete", name)


def _link(name: str, number: int, kind: int) -> Link:
    here, there = f"tn{number % 10**7}x{kind}", f"tn{number % 10**7}y{kind}"
    subnet = f"10.{213 + kind}.{number % 250}"
    link = Link(device=here, here=f"{subnet}.1", there=f"{subnet}.2")
    _ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
    _ip("address", "add", f"{link.here}/30", "dev", here)
    _ip("-n", name, "address", "add", f"{link.there}/30", "dev", there)
    _ip("-n", name, "link", "set", there, "up")
    link.mend()
    return link


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], env={"PATH": _PATH}, check=True, capture_output=True)
