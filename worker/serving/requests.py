"""The requests to the service as types, and the encoding of its answers."""

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from indb_tensile.errors import RequestError, TensileError
from indb_tensile.job import JobSpec, ModelVersionId
from indb_tensile.learning.decoding.binary_rows import SentRecords
from indb_tensile.learning.decoding.copy_encodings import of_column
from indb_tensile.learning.decoding.jsonrows import SqlRecord
from indb_tensile.learning.storage.columns import CopyEncoding
from indb_tensile.request.pair_sides import SIDES

from .identity import DatabaseIdentity
from .service_frames import PROTOCOL, ProtocolError, body_with


class PredictionKind(StrEnum):
    """The form of a prediction."""

    VALUE = "value"  # a number: the regression's value, or a numeric or boolean label
    LABEL = "label"  # the label as text
    LABELS = "labels"  # the labels as a list: the predicted set, or the only label
    PROBA = "proba"  # every label with its probability
    VECTOR = "vector"  # the network's outputs
    EMBEDDING = "embedding"  # the last hidden representation
    QUERY_EMBEDDING = "query_embedding"  # the vector of a row that has the columns of a query
    ITEM_EMBEDDING = "item_embedding"  # the vector of a row that has the columns of an item
    VALUES = "values"  # the values of a regression, one or several
    TABLE = "table"  # value and label together, as PostgreSQL's text of arrays
    TABLE_PROBA = "table_proba"  # the same, with the probabilities of all labels as JSON
    TABLE_EMBEDDING = "table_embedding"  # the last hidden representation, as the text of a list
    TABLE_QUERY_EMBEDDING = "table_query_embedding"  # the vectors of a side, likewise
    TABLE_ITEM_EMBEDDING = "table_item_embedding"


TABLE_KINDS = tuple(kind for kind in PredictionKind if kind.startswith("table"))
EMBEDDING_KINDS = tuple(kind for kind in PredictionKind if kind.endswith("embedding"))
SIDE_OF_KIND: Mapping[str, str] = {
    kind: side for kind in EMBEDDING_KINDS for side in SIDES if kind.endswith(f"{side}_embedding")
}


class Request(msgspec.Struct, frozen=True, kw_only=True, tag_field="verb", tag=str.lower):
    """A request. Its verb is the class's name in lower case."""


class Predict(Request, frozen=True, kw_only=True):
    """Predict each row: an object of column and value, an array in the order of the features, or a single value.

    `unnamed` is true if the objects are anonymous SQL records, whose fields are named f1, f2 and so on. Instead of
    `rows`, the request's binary part may have `record_rows` rows, as records in the encoding of `record_send`.
    `columns` are the names and types of their columns, as PostgreSQL of `server_version` sends them. Columns of
    integers named `keys` follow; the answer has them as JSON. If `measured`, the rows are counted by the bins of
    their inputs.
    """

    version: ModelVersionId
    rows: list[Any]
    kind: PredictionKind = PredictionKind.VALUE
    unnamed: bool = False
    columns: list[tuple[str, str]] = []
    keys: list[tuple[str, str]] = []
    record_rows: int = 0
    server_version: int = 0
    measured: bool = False

    def rows_of(self, records: bytes) -> Sequence[Any]:
        """Return the rows of the request, whose binary part is given."""
        if not self.record_rows:
            return self.marked_rows
        fields, key_fields = (_encodings(each, self.server_version) for each in (self.columns, self.keys))
        return SentRecords(records, self.record_rows, fields, key_fields)

    @property
    def marked_rows(self) -> list[Any]:
        """The rows. Objects become `SqlRecord`s if their fields are unnamed."""
        return _marked(self.rows, unnamed=self.unnamed)


class Read(Request, frozen=True, kw_only=True):
    """Read a table, and predict its rows that follow the first `after` ones.

    `columns`, `keys` and `measured` are as in `Predict`. `role` is the oid of the role that asks, `snapshot` the
    snapshot that its session has exported, and `transaction` the virtual id of the session's transaction, in the
    process `pid` of the server. A connection reads one table. Each request is complete, so another service can
    continue.
    """

    version: ModelVersionId
    kind: PredictionKind
    oid: int
    schema: str
    relation: str
    columns: list[tuple[str, str]]
    keys: list[tuple[str, str]]
    server_version: int
    role: int
    snapshot: str
    transaction: str
    pid: int
    after: int = 0
    measured: bool = False

    @property
    def fields(self) -> list[tuple[str, CopyEncoding]]:
        """The encodings of `columns`."""
        return _encodings(self.columns, self.server_version)

    @property
    def key_fields(self) -> list[tuple[str, CopyEncoding]]:
        """The encodings of `keys`."""
        return _encodings(self.keys, self.server_version)


def _encodings(columns: Sequence[tuple[str, str]], server_version: int) -> list[tuple[str, CopyEncoding]]:
    fields = []
    for name, base in columns:
        encoding = of_column(base, enumerated=False, server_version=server_version)
        if encoding is None:
            raise ProtocolError(f'a request has column "{name}" of the unknown type {base!r}')
        fields.append((name, encoding))
    return fields


def _marked(rows: list[Any], *, unnamed: bool) -> list[Any]:
    return [SqlRecord(row) if isinstance(row, dict) else row for row in rows] if unnamed else rows


class Figure(StrEnum):
    """What an evaluation computes."""

    METRICS = "metrics"
    CONFUSION_MATRIX = "confusion_matrix"
    ROC_CURVE = "roc_curve"
    CALIBRATION = "calibration"
    LABEL_METRICS = "label_metrics"
    FEATURE_IMPORTANCE = "feature_importance"


class FigureOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of figures: the `label` that a figure is of, or null for all, and the `bins` of a calibration.

    The importance of columns is the loss in `metric` over `repeats` permutations, which `seed` decides.
    """

    label: str | None = None
    bins: int = 15
    metric: str = ""
    repeats: int = 5
    seed: int = 0


class Evaluate(Request, frozen=True, kw_only=True):
    """Score a version on rows that include the target, in parts on one connection.

    `evaluation` is the client's number for the evaluation. Parts are counted from 0. The answer to the last part has
    the metrics, or the rows of another figure.
    """

    version: ModelVersionId
    rows: list[dict[str, Any]]
    evaluation: int = 0
    part: int = 0
    last: bool = True
    figure: Figure = Figure.METRICS
    options: FigureOptions = FigureOptions()


class Attribute(Request, frozen=True, kw_only=True):
    """Explain the prediction for a row: what each of its columns adds to it.

    `rows` has one row, as in `Predict`. The prediction is the value of a regression, else the probability of `label`,
    or of the predicted label. `seed` draws the orders of the columns, if there are too many for all of them.
    """

    version: ModelVersionId
    rows: list[Any]
    unnamed: bool = False
    label: str | None = None
    seed: int = 0

    @property
    def marked_rows(self) -> list[Any]:
        """The row. An object becomes an `SqlRecord` if its fields are unnamed."""
        return _marked(self.rows, unnamed=self.unnamed)


class NextSteps(Request, frozen=True, kw_only=True):
    """Forecast the next steps of whole series, or judge forecasts from every origin of them.

    A row is a list: whether it only has future values of known columns, and its object. `sums` are those of the
    series that were judged before; null for a forecast, and an empty list for the first series.
    """

    version: ModelVersionId
    rows: list[tuple[bool, dict[str, Any]]]
    horizon: int | None = None
    sums: list[Any] | None = None


class Features(Request, frozen=True, kw_only=True):
    """Ask for the columns that a version needs, the kind of each (number, text, time or array), and `numeric`.

    `numeric` is true if a prediction is a number and not a text label. With `side` the columns are those of one side
    of pairs.
    """

    version: ModelVersionId
    side: str | None = None


class ColumnSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of one column before its rows are read. `kind` is that of `learning/storage/columns.py`.

    `distinct` is the number of distinct values in a sample (None for arrays); `shape` is the shape of one array.
    `heads` are the first bytes of some images in hexadecimal, with their headers. `texts` are some texts of a column
    that is read as tokens by a training with several lengths, or their beginnings, and None for NULL.
    """

    name: str
    kind: str
    type: str = ""
    distinct: int | None = None
    ndims: int = 0
    shape: tuple[int, ...] = ()
    heads: tuple[str, ...] = ()
    texts: tuple[str | None, ...] = ()


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """The shares of the rows that test and that validate."""

    test: float
    valid: float


class Explain(Request, frozen=True, kw_only=True):
    """Predict what a training would need, from statistics of its columns: the features and the target.

    `limit_bytes` is the job's own memory limit, or None. `budget_bytes` is the memory that is free for it on the
    device now, or None if no controller has reported that. `shares` are the shares of rows that test and validate, if
    a column of the table says which rows do. `owner_oid` is the role that asks.
    """

    spec: JobSpec
    columns: list[ColumnSummary]
    rows: int
    limit_bytes: int | None = None
    budget_bytes: int | None = None
    shares: Shares | None = None
    owner_oid: int = 0


class Dataset(Request, frozen=True, kw_only=True):
    """Read one page of a sample data set."""

    name: str
    offset: int = 0
    limit: int = 2000


class Ping(Request, frozen=True, kw_only=True):
    """Ask for the state of the service."""


AnyRequest = Predict | Read | Evaluate | Attribute | NextSteps | Features | Explain | Dataset | Ping
_OF_REQUESTS = (Predict, Read, Evaluate, Attribute, NextSteps, Features, Explain, Dataset, Ping)
VERBS = tuple(sorted(verb.__name__.lower() for verb in _OF_REQUESTS))


class Header(msgspec.Struct, frozen=True):
    """The header that every request has: its verb, and the identity of the requesting database."""

    verb: str
    installation: str = ""
    server_start: str = ""

    @property
    def asks(self) -> DatabaseIdentity:
        """The identity of the requesting database."""
        return DatabaseIdentity(installation=self.installation, server_start=self.server_start)


class RowError(RequestError):
    """An error in one row of a request; `row` counts from 0."""

    def __init__(self, error: TensileError, row: int) -> None:
        super().__init__(error.message, detail=error.detail, hint=error.hint)
        self.sqlstate = error.sqlstate
        self.row = row


_header_decoder = msgspec.json.Decoder(Header)
_LONGEST_INTEGER = 400  # characters: a double has up to 309 digits
_QUOTED_CHARACTERS = 40  # characters of an unknown verb that an error message quotes
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_decoder: msgspec.json.Decoder[AnyRequest] = msgspec.json.Decoder(AnyRequest)


def header_of(body: bytes) -> Header:
    """Decode the header alone, without building the request. Raises ProtocolError if it cannot be read."""
    try:
        header = _header_decoder.decode(body)
    except _UNREADABLE as error:
        raise _unreadable("a request", body, error) from error
    if header.verb not in VERBS:
        verb = header.verb if len(header.verb) <= _QUOTED_CHARACTERS else header.verb[:_QUOTED_CHARACTERS] + "..."
        raise ProtocolError(f"the service knows no verb {verb!r}", hint=f"The verbs are {', '.join(VERBS)}.")
    return header


def parse(body: bytes) -> AnyRequest:
    """Decode the request in the body of one frame. Raises ProtocolError with the part that is wrong."""
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
    """Decode the body by the standard library, which turns numbers beyond double precision into infinity.

    It is slower than msgspec. A `numeric` of PostgreSQL has up to 147,455 digits, and Python refuses to read integers
    of more than 4,300.
    """
    return json.loads(
        body, parse_int=lambda digits: int(digits) if len(digits) <= _LONGEST_INTEGER else float(digits)
    )


def _unreadable(subject: str, body: bytes, error: Exception) -> RequestError:
    if isinstance(error, RecursionError):
        return RequestError(f"{subject} is nested too deep", hint="Give lists and objects that are nested less deep.")
    return ProtocolError(f"{subject} of {len(body)} bytes is not understood: {error}")


def greeting(installation: str, code_version: str) -> bytes:
    """Encode the first message of each connection: the service's database, and the versions of protocol and code."""
    fields = {"protocol": PROTOCOL, "version": code_version, "installation": installation}
    return json.dumps(fields, separators=(",", ":")).encode()


def refused_greeting(reason: str) -> bytes:
    """Encode the only message for a client of another host whose certificate is refused."""
    hint = (
        "Put the certificate of the database's host into tls_directory, or name it in TENSILE_SERVICE_CLIENT_NAME on "
        "that host."
    )
    return json.dumps({"refused": reason, "hint": hint}, separators=(",", ":")).encode()


def success(result: Any) -> bytes:
    """Encode the answer to a request that succeeded."""
    return success_of(encode(result))


def success_of(result: bytes) -> bytes:
    """Return the answer to a request that succeeded, from a result that is already encoded."""
    return b'{"ok":true,"result":' + result + b"}"


def success_of_texts(rows: int, texts: Mapping[str, str | None]) -> bytes:
    """Return the answer for `rows` rows of a relation.

    The texts follow the JSON, which has the size of each in bytes, because in JSON each quote would be escaped.
    """
    parts = {name: None if text is None else text.encode() for name, text in texts.items()}
    sizes = {name: None if part is None else len(part) for name, part in parts.items()}
    return body_with(success({"rows": rows, "texts": sizes}), [part for part in parts.values() if part is not None])


def encode(value: Any) -> bytes:
    """Encode a value by the standard library.

    It writes numbers that are not finite as `NaN` or `Infinity`, which the bridge function's reader expects. A strict
    JSON writer would turn them into null.
    """
    return json.dumps(value, separators=(",", ":")).encode()


def failure(error: TensileError) -> bytes:
    """Encode the answer to a request that failed."""
    fields: dict[str, Any] = {
        "sqlstate": error.sqlstate,
        "message": error.message,
        "detail": error.detail,
        "hint": error.hint,
    }
    if isinstance(error, RowError):
        fields["row"] = error.row
    return json.dumps({"ok": False, "error": fields}, separators=(",", ":")).encode()
