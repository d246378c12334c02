"""What the service can be asked, typed, and the form of its answers."""

import json
from enum import StrEnum
from typing import Any

import msgspec

from indb_tensile.errors import TensileError
from indb_tensile.job import JobSpec, ModelVersionId

from .frames import ProtocolError


class Kind(StrEnum):
    """Which form a prediction takes."""

    VALUE = "value"  # a number: the regression's value, or a numeric or boolean label
    LABEL = "label"  # the label as text
    PROBA = "proba"  # every label with its probability
    VECTOR = "vector"  # the network's outputs


class Request(msgspec.Struct, frozen=True, kw_only=True, tag_field="verb", tag=str.lower):
    """One request; the verb is the class's name in lower case."""


class Predict(Request, frozen=True, kw_only=True):
    """Predict each row: an object of column and value, an array in the order of the features, or one value."""

    version: ModelVersionId
    rows: list[Any]
    kind: Kind = Kind.VALUE


class Evaluate(Request, frozen=True, kw_only=True):
    """Score a version on rows that hold the target too."""

    version: ModelVersionId
    rows: list[dict[str, Any]]


class ColumnStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one column before it is read; `kind` is that of `learning/columns.py`.

    `distinct` counts the different values in a sample (None for arrays), `shape` is that of one array.
    """

    name: str
    kind: str
    type: str = ""
    distinct: int | None = None
    ndims: int = 0
    shape: tuple[int, ...] = ()


class Explain(Request, frozen=True, kw_only=True):
    """Say what a training would need, from statistics of its columns alone: the features and the target.

    `limit_bytes` is what the job may use, None for no limit of its own; `budget_bytes` is what the device has
    left for it now, None where no controller has said.
    """

    spec: JobSpec
    columns: list[ColumnStatistics]
    rows: int
    limit_bytes: int | None = None
    budget_bytes: int | None = None


class Dataset(Request, frozen=True, kw_only=True):
    """One page of a sample data set."""

    name: str
    offset: int = 0
    limit: int = 2000


class Ping(Request, frozen=True, kw_only=True):
    """Ask who answers."""


AnyRequest = Predict | Evaluate | Explain | Dataset | Ping
VERBS = tuple(sorted(verb.__name__.lower() for verb in (Predict, Evaluate, Explain, Dataset, Ping)))


class _Header(msgspec.Struct, frozen=True):
    verb: str


_header_decoder = msgspec.json.Decoder(_Header)
_decoder: msgspec.json.Decoder[AnyRequest] = msgspec.json.Decoder(AnyRequest)


def verb_of(body: bytes) -> str:
    """The verb alone, without building the rest. Raises ProtocolError where there is none."""
    try:
        verb = _header_decoder.decode(body).verb
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"a request of {len(body)} bytes is not understood: {error}") from error
    if verb not in VERBS:
        raise ProtocolError(f"the service knows no verb {verb!r}", hint=f"it knows {', '.join(VERBS)}")
    return verb


def parse(body: bytes) -> AnyRequest:
    """The request in one frame's body. Raises ProtocolError that names what does not fit."""
    verb = verb_of(body)
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"a request {verb} is not understood: {error}") from error


def success(result: Any) -> bytes:
    """The answer to a request that was done.

    Written by the standard library, which keeps a prediction that is not finite as `NaN` or `Infinity`, as the
    bridge's own reader expects; a strict writer would turn it into null.
    """
    return json.dumps({"ok": True, "result": result}, separators=(",", ":")).encode()


def failure(error: TensileError) -> bytes:
    """The answer to a request that could not be done."""
    told = {"sqlstate": error.sqlstate, "message": error.message, "detail": error.detail, "hint": error.hint}
    return json.dumps({"ok": False, "error": told}, separators=(",", ":")).encode()
