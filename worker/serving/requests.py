"""What the service can be asked, typed, and the form of its answers."""

import json
from enum import StrEnum
from typing import Any

import msgspec

from indb_tensile.errors import RequestError, TensileError
from indb_tensile.job import JobSpec, ModelVersionId
from indb_tensile.learning.jsonrows import Record

from .frames import PROTOCOL, ProtocolError
from .identity import DatabaseIdentity


class Kind(StrEnum):
    """Which form a prediction takes."""

    VALUE = "value"  # a number: the regression's value, or a numeric or boolean label
    LABEL = "label"  # the label as text
    PROBA = "proba"  # every label with its probability
    VECTOR = "vector"  # the network's outputs


class Request(msgspec.Struct, frozen=True, kw_only=True, tag_field="verb", tag=str.lower):
    """One request; the verb is the class's name in lower case."""


class Predict(Request, frozen=True, kw_only=True):
    """Predict each row: an object of column and value, an array in the order of the features, or one value.

    `unnamed`: the objects are records of SQL, which name fields f1, f2, ... where nobody else named them.
    """

    version: ModelVersionId
    rows: list[Any]
    kind: Kind = Kind.VALUE
    unnamed: bool = False

    @property
    def marked_rows(self) -> list[Any]:
        """The rows; records without names of their own as such."""
        return [Record(row) if isinstance(row, dict) else row for row in self.rows] if self.unnamed else self.rows


class Evaluate(Request, frozen=True, kw_only=True):
    """Score a version on rows that hold the target too, part by part on one connection.

    `evaluation` is the client's number for it. Parts are counted from 0; the answer to the last one has the metrics.
    """

    version: ModelVersionId
    rows: list[dict[str, Any]]
    evaluation: int = 0
    part: int = 0
    last: bool = True


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


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of the rows tests, and which validates."""

    test: float
    valid: float


class Explain(Request, frozen=True, kw_only=True):
    """Say what a training would need, from statistics of its columns alone: the features and the target.

    `limit_bytes` is what the job may use, None for no limit of its own; `budget_bytes` is what the device has
    left for it now, None where no controller has said. `shares` are those of the rows that test and validate, where a
    column says which do.
    """

    spec: JobSpec
    columns: list[ColumnStatistics]
    rows: int
    limit_bytes: int | None = None
    budget_bytes: int | None = None
    shares: Shares | None = None


class Dataset(Request, frozen=True, kw_only=True):
    """One page of a sample data set."""

    name: str
    offset: int = 0
    limit: int = 2000


class Ping(Request, frozen=True, kw_only=True):
    """Ask who answers."""


AnyRequest = Predict | Evaluate | Explain | Dataset | Ping
VERBS = tuple(sorted(verb.__name__.lower() for verb in (Predict, Evaluate, Explain, Dataset, Ping)))


class Header(msgspec.Struct, frozen=True):
    """What every request has: its verb, and the database that asks."""

    verb: str
    installation: str = ""
    server_start: str = ""

    @property
    def asks(self) -> DatabaseIdentity:
        """The database that asks."""
        return DatabaseIdentity(installation=self.installation, server_start=self.server_start)


class RowError(RequestError):
    """What is wrong with one row of a request; `row` counts from 0."""

    def __init__(self, error: TensileError, row: int) -> None:
        super().__init__(error.message, detail=error.detail, hint=error.hint)
        self.sqlstate = error.sqlstate
        self.row = row


_header_decoder = msgspec.json.Decoder(Header)
_LONGEST_INTEGER = 400  # characters: a double has up to 309 digits
_SHOWN = 40  # characters of a verb that is not known
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_decoder: msgspec.json.Decoder[AnyRequest] = msgspec.json.Decoder(AnyRequest)


def header_of(body: bytes) -> Header:
    """The header alone, without building the rest. Raises ProtocolError where there is none."""
    try:
        header = _header_decoder.decode(body)
    except _UNREADABLE as error:
        raise _unreadable("a request", body, error) from error
    if header.verb not in VERBS:
        verb = header.verb if len(header.verb) <= _SHOWN else header.verb[:_SHOWN] + "..."
        raise ProtocolError(f"the service knows no verb {verb!r}", hint=f"it knows {', '.join(VERBS)}")
    return header


def parse(body: bytes) -> AnyRequest:
    """The request in one frame's body. Raises ProtocolError that names what does not fit."""
    verb = header_of(body).verb
    try:
        try:
            return _decoder.decode(body)
        except msgspec.ValidationError as error:
            if "out of range" not in str(error):
                raise
            lenient: AnyRequest = msgspec.convert(_with_infinities(body), AnyRequest)
            return lenient
    except (*_UNREADABLE, ValueError) as error:
        raise _unreadable(f"a request {verb}", body, error) from error


def _with_infinities(body: bytes) -> Any:
    """The same by the standard library, which is slower: a number beyond double precision is infinite.

    A `numeric` of PostgreSQL has up to 147,455 digits, and Python reads integers of 4,300.
    """
    return json.loads(
        body, parse_int=lambda digits: int(digits) if len(digits) <= _LONGEST_INTEGER else float(digits)
    )


def _unreadable(subject: str, body: bytes, error: Exception) -> RequestError:
    if isinstance(error, RecursionError):
        return RequestError(f"{subject} is nested too deep", hint="Give lists and objects that are nested less deep.")
    return ProtocolError(f"{subject} of {len(body)} bytes is not understood: {error}")


def greeting(installation: str, code_version: str) -> bytes:
    """The first frame's body on each connection: whose service answers, and how it wants to be spoken to."""
    told = {"protocol": PROTOCOL, "version": code_version, "installation": installation}
    return json.dumps(told, separators=(",", ":")).encode()


def success(result: Any) -> bytes:
    """The answer to a request that was done."""
    return success_of(encode(result))


def success_of(result: bytes) -> bytes:
    """The same of a result that is encoded already."""
    return b'{"ok":true,"result":' + result + b"}"


def encode(value: Any) -> bytes:
    """Written by the standard library, which keeps a number that is not finite as `NaN` or `Infinity`, as the
    bridge's own reader expects; a strict writer would turn it into null.
    """
    return json.dumps(value, separators=(",", ":")).encode()


def failure(error: TensileError) -> bytes:
    """The answer to a request that could not be done."""
    told: dict[str, Any] = {
        "sqlstate": error.sqlstate,
        "message": error.message,
        "detail": error.detail,
        "hint": error.hint,
    }
    if isinstance(error, RowError):
        told["row"] = error.row
    return json.dumps({"ok": False, "error": told}, separators=(",", ":")).encode()
