"""The analyst's own process: explains trainings and reads sample data sets, one request at a time.

Started by the service with one end of a socket pair; ends when the other end does. It runs at a lower priority
than the predictions beside it.
"""

import logging
import os
import signal
import socket
from collections.abc import Callable
from typing import Any

import torch

from indb_tensile.errors import InvariantError, TensileError
from indb_tensile.log import start_log

from . import settings
from .analyst_process import FD_VARIABLE
from .dataset import dataset
from .explain import Explainer
from .frames import FrameBuffer, frame
from .processes import die_with_parent
from .requests import AnyRequest, Dataset, Explain, failure, parse, success
from .store import Store

_RECEIVE_BYTES = 1 << 18
_NICENESS = 5

_log = logging.getLogger(__name__)


def main() -> int:
    """Serve until the service is gone; return the exit code."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the service's to handle
    os.nice(_NICENESS)
    mine = settings.load(os.environ).shared
    start_log("analyst", mine.log_level.upper())
    torch.set_num_threads(mine.threads)
    with (
        socket.socket(fileno=int(os.environ[FD_VARIABLE])) as link,
        Store(mine.dsn, "analyst", mine.device, mine.threads) as store,
    ):
        _serve(link, Desk(Explainer(store.latencies, store.latency_predictor, mine)).answer)
    return 0


class Desk:
    """Who does which request."""

    def __init__(self, explainer: Explainer) -> None:
        self._explainer = explainer

    def answer(self, request: AnyRequest) -> Any:
        """The request's result. Raises TensileError with what the client is to be told."""
        match request:
            case Explain():
                return {"rows": self._explainer.explain(request)}
            case Dataset():
                return dataset(request)
            case other:
                raise InvariantError(f"the analyst has no answer to {type(other).__name__}")


def _serve(link: socket.socket, answer: Callable[[AnyRequest], Any]) -> None:
    buffer = FrameBuffer()
    while data := link.recv(_RECEIVE_BYTES):
        buffer.feed(data)
        while (body := buffer.take()) is not None:
            link.sendall(_answer(body, answer))


def _answer(body: bytes, answer: Callable[[AnyRequest], Any]) -> bytes:
    try:
        return frame(success(answer(parse(body))))
    except TensileError as error:
        return frame(failure(error))
    except Exception as error:  # noqa: BLE001 - the daemon's outermost loop: logged, told, and on with the next
        _log.exception("a request of %d bytes failed", len(body))
        told = InvariantError(
            f"the service failed: {type(error).__name__}: {error}", hint="its log has the whole of it"
        )
        return frame(failure(told))


if __name__ == "__main__":
    raise SystemExit(main())
