"""A fake analyst process: it answers `{"do": "echo"}` with its process id and the request, ends with code 7 at
`{"do": "die"}`, and never answers `{"do": "hang"}`.
"""

import json
import os
import signal
import socket

from worker.serving.analyst_process import FD_VARIABLE


def main() -> int:
    with socket.socket(fileno=int(os.environ[FD_VARIABLE])) as ours, ours.makefile("rwb") as link:
        while header := link.read(4):
            body = json.loads(link.read(int.from_bytes(header, "big")))
            if body["do"] == "die":
                os._exit(7)
            if body["do"] == "hang":
                signal.pause()
            answer = json.dumps([os.getpid(), body]).encode()
            link.write(len(answer).to_bytes(4, "big") + answer)
            link.flush()
    return 0
