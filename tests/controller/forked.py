"""What a fork server runs for tests: it says what it is over its link, and waits for an exit code."""

import os
import socket
from pathlib import Path

from indb_tensile import config


def main() -> int:
    link_fd = config.inherited_descriptors(os.environ).link_fd
    own = [path.name for path in Path("/proc/self/fd").iterdir() if path.exists()]
    with socket.socket(fileno=link_fd) as link:
        told = (os.getpid(), os.getppid(), os.getpgrp(), len(list(Path("/proc/self/task").iterdir())), len(own))
        link.sendall(" ".join(map(str, told)).encode())
        return int(link.recv(16) or b"1")
