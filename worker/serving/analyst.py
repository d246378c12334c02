"""The analyst's process: predicts memory and time of trainings not yet queued, and reads the built-in data sets.

The process handles one request at a time. The service starts the process with one end of a socket pair. The process
ends when the service closes the other end, or when the service ends the process because the client of a request
disconnected or a request took too long. It runs at a lower priority than predictions.
"""

import logging
import os
import signal
import socket
from collections.abc import Callable
from typing import Any

import torch

from indb_tensile.controller.parent_death import die_with_parent
from indb_tensile.errors import InvariantError, TensileError
from indb_tensile.log import start_log

from . import settings
from .analyst_process import FD_VARIABLE
from .dataset import dataset
from .explain import Explainer
from .requests import AnyRequest, Dataset, Explain, failure, parse, success
from .service_frames import RequestBuffer, frame
from .store import Store

_RECEIVE_BYTES = 1 << 18
_NICENESS = 5

_log = logging.getLogger(__name__)


def main() -> int:
    """Serve until the service closes its end of the socket pair. Returns the exit code."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the service handles a terminal's Ctrl-C
    os.nice(_NICENESS)
    shared = settings.load(os.environ).shared
    start_log("analyst", shared.log_level.upper())
    torch.set_num_threads(shared.threads)
    with (
        socket.socket(fileno=int(os.environ[FD_VARIABLE])) as link,
        Store(shared.dsn, "analyst", shared.device, shared.threads, by_nccl=shared.uses_nccl) as store,
    ):
        _serve(
            link,
            AnalystDispatcher(
                Explainer(
                    store.latencies,
                    store.latency_predictor,
                    shared,
                    store.outlook,
                    store.network,
                    store.gang_network,
                    store.connection_bytes,
                    store.gang_budgets,
                )
            ).answer,
        )
    return 0


class AnalystDispatcher:
    """Dispatches each request to the code that answers it."""

    def __init__(self, explainer: Explainer) -> None:
        self._explainer = explainer

    def answer(self, request: AnyRequest) -> Any:
        """Return the request's result. Raises TensileError with the message for the client."""
        match request:
            case Explain():
                return {"rows": self._explainer.explain(request)}
            case Dataset():
                return dataset(request)
            case other:
                raise InvariantError(f"the analyst has no answer to {type(other).__name__}")


def _serve(link: socket.socket, answer: Callable[[AnyRequest], Any]) -> None:
    buffer = RequestBuffer()
    while data := link.recv(_RECEIVE_BYTES):
        buffer.feed(data)
        while (body := buffer.take()) is not None:
            link.sendall(_answer(body, answer))


def _answer(body: bytes, answer: Callable[[AnyRequest], Any]) -> bytes:
    try:
        return frame(success(answer(parse(body))))
    except TensileError as error:
        return frame(failure(error))
    except Exception as error:  # noqa: BLE001 - the daemon's outermost loop: logged and answered
        _log.exception("a request of %d bytes failed", len(body))
        fault = InvariantError(
            f"the analyst failed: {type(error).__name__}: {error}", hint="See the service's log for the traceback."
        )
        return frame(failure(fault))


if __name__ == "__main__":
    raise SystemExit(main())
