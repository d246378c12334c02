"""Read and write a step graph as JSON, so that a graph can be planned without the network from which it was captured.

    {"format": "indb-tensile step graph", "version": 1, "name": "resnet50", "signature": "9f3c...",
     "tensors": [{"id": 0, "name": "conv1.weight", "size_bytes": 37632, "role": "parameter"}, ...],
     "operators": [{"name": "aten.convolution.default", "signature": "61ab...", "stage": "forward",
                    "reads": [0, 161], "writes": [170], "latency_ns": 93000,
                    "workspace_bytes": 0, "flops": 3776249856, "random": false, "splittable": false}, ...]}

Operators are in the order of execution. `reads` and `writes` are ids of tensors. A tensor's id is its position in the
list. A `role` is parameter, optimizer_state, buffer, input or activation; the first three live across iterations. A
`stage` is upload, forward, backward or optimizer. Either every operator has `latency_ns` or none has; without it, a
machine's speed and the operators' `flops` give the latency. The optional fields `workspace_bytes` and `flops` default
to 0, `random` and `splittable` to false. `starts` and `awaits` are the numbers, from 0, of the exchange with other
devices that the operator starts or waits for; most have neither. All other fields are required. An unknown field is
refused, because it is most likely a misspelt one.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn, TypeVar

from indb_tensile.errors import GraphError, RequestError
from indb_tensile.scheduler.graph import Operator, Role, Stage, StepGraph, Tensor, TensorId

FORMAT = "indb-tensile step graph"
VERSION = 1

_MOST = 2**62  # upper limit for all bytes or all nanoseconds together: the load is computed in 64-bit integers

_Word = TypeVar("_Word", bound=StrEnum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A step graph, its name, and the latencies of its operators if they are known."""

    name: str
    graph: StepGraph
    latency_ns: tuple[int, ...] | None = None


def write_document(document: Document) -> str:
    """Return the document as text with one tensor or operator a line."""
    graph = document.graph
    latency_ns = document.latency_ns or (None,) * len(graph.operators)
    tensors = [_line(_tensor_fields(tensor)) for tensor in graph.tensors]
    operators = [_line(_operator_fields(o, ns)) for o, ns in zip(graph.operators, latency_ns, strict=True)]
    head = _line({"format": FORMAT, "version": VERSION, "name": document.name, "signature": graph.signature})
    return f'{head[:-1]},\n"tensors":[\n{_join(tensors)}],\n"operators":[\n{_join(operators)}]}}\n'


def read_document(text: str | bytes) -> Document:
    """Return the document in this text. Raises RequestError, which says what is wrong, where, and what to do."""
    fields = _Fields("the graph", _parse(text))
    if fields.values.get("format") != FORMAT:
        value = fields.values.get("format")
        _refuse(f"the file's format is {_shown(value)}", f'A step graph opens with "format": "{FORMAT}".')
    if fields.whole("version", at_least=None) != VERSION:
        value = fields.values["version"]
        _refuse(f"the graph's version is {value}, and this program reads version {VERSION}", "Export it anew.")
    fields.only("format", "version", "name", "signature", "tensors", "operators")
    tensors = tuple(_tensor(item, k) for k, item in enumerate(fields.many("tensors")))
    items = fields.many("operators")
    operators = tuple(_operator(item, k, tensors) for k, item in enumerate(items))
    latency_ns = _latencies(items)
    _check_sums(tensors, operators, latency_ns)
    try:
        graph = StepGraph(tensors=tensors, operators=operators, signature=fields.text("signature"))
    except GraphError as error:
        _refuse(error.message, _way_out(operators), error)
    return Document(name=fields.text("name"), graph=graph, latency_ns=latency_ns)


def _way_out(operators: tuple[Operator, ...]) -> str:
    if not operators:
        return "A step has at least one operator."
    return "List the operators in an order in which every tensor is written before it is read."


def _line(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, separators=(",", ":"))


def _join(lines: list[str]) -> str:
    return ",\n".join(lines)


def _tensor_fields(tensor: Tensor) -> dict[str, Any]:
    return {"id": tensor.id, "name": tensor.name, "size_bytes": tensor.size_bytes, "role": tensor.role.value}


def _operator_fields(operator: Operator, latency_ns: int | None) -> dict[str, Any]:
    return {
        "name": operator.name,
        "signature": operator.signature,
        "stage": operator.stage.value,
        "reads": list(operator.reads),
        "writes": list(operator.writes),
        **({} if latency_ns is None else {"latency_ns": latency_ns}),
        "workspace_bytes": operator.workspace_bytes,
        "flops": operator.flops,
        "random": operator.random,
        "splittable": operator.splittable,
        **({} if operator.starts is None else {"starts": operator.starts}),
        **({} if operator.awaits is None else {"awaits": operator.awaits}),
    }


# --- reading ---------------------------------------------------------------------------------------------------


def _parse(text: str | bytes) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_once)
    except RecursionError as error:
        _refuse("the file is nested too deep for a step graph", "Write it as documented.", error)
    except UnicodeDecodeError as error:
        _refuse(f"the file is not text: {error.reason} at byte {error.start}", "Write it as UTF-8.", error)
    except json.JSONDecodeError as error:
        _refuse(
            f"the file is not JSON: {error.msg} at line {error.lineno}, column {error.colno}", "Write JSON.", error
        )
    except ValueError as error:  # Python refuses to read integers with very many digits.
        _refuse(f"the file has a number that cannot be read: {error}", "Give whole numbers below 2^62.", error)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        _refuse(f"field {twice!r} stands twice in one object", "Leave one of them out.")
    return fields


def _tensor(item: Any, position: int) -> Tensor:
    fields = _Fields(f"tensor {position}", item)
    fields.only("id", "name", "size_bytes", "role")
    identity = fields.whole("id")
    if identity != position:
        _refuse(f"tensor {position} has id {identity}", "A tensor's id is its place in the list, from 0.")
    return Tensor(
        id=TensorId(identity),
        name=fields.text("name"),
        size_bytes=fields.whole("size_bytes", at_least=1),
        role=fields.word("role", Role),
    )


def _operator(item: Any, position: int, tensors: tuple[Tensor, ...]) -> Operator:
    fields = _Fields(f"operator {position}", item)
    name = fields.text("name")
    fields.subject = f"operator {position} ({name})"
    fields.only(
        *("name", "signature", "stage", "reads", "writes"),
        *("latency_ns", "workspace_bytes", "flops", "random", "splittable", "starts", "awaits"),
    )
    return Operator(
        name=name,
        signature=fields.text("signature"),
        stage=fields.word("stage", Stage),
        reads=fields.ids("reads", len(tensors)),
        writes=fields.ids("writes", len(tensors)),
        workspace_bytes=fields.whole("workspace_bytes", default=0),
        flops=fields.whole("flops", default=0),
        random=fields.flag("random"),
        splittable=fields.flag("splittable"),
        starts=fields.whole("starts") if "starts" in fields.values else None,
        awaits=fields.whole("awaits") if "awaits" in fields.values else None,
    )


def _latencies(items: list[Any]) -> tuple[int, ...] | None:
    timed = [position for position, item in enumerate(items) if "latency_ns" in item]
    if not timed:
        return None
    if len(timed) < len(items):
        first = min(set(range(len(items))) - set(timed))
        _refuse(
            f"operator {first} ({items[first]['name']}) has no latency_ns, and operator {timed[0]} has one",
            "Give a latency to every operator, or to none.",
        )
    latency_ns = tuple(_Fields(f"operator {k} ({i['name']})", i).whole("latency_ns") for k, i in enumerate(items))
    if not any(latency_ns):
        _refuse("every operator's latency_ns is 0", "Give latencies in nanoseconds, or leave them all out.")
    return latency_ns


def _check_sums(
    tensors: tuple[Tensor, ...], operators: tuple[Operator, ...], latency_ns: tuple[int, ...] | None
) -> None:
    total_bytes = sum(t.size_bytes for t in tensors) + max((o.workspace_bytes for o in operators), default=0)
    for unit, total in (("bytes", total_bytes), ("nanoseconds", sum(latency_ns or ()))):
        if total >= _MOST:
            _refuse(f"the graph adds up to {total} {unit}", "Sizes are bytes, latencies nanoseconds; below 2^62.")


class _Fields:
    """One object of the document. `subject` is the object's name in error messages."""

    def __init__(self, subject: str, item: Any) -> None:
        if not isinstance(item, dict):
            _refuse(f"{subject} is {_shown(item)}, not an object", "Write it as documented.")
        self.subject = subject
        self.values: dict[str, Any] = item

    def only(self, *names: str) -> None:
        unknown = sorted(set(self.values) - set(names))
        if unknown:
            _refuse(f"{self.subject} has an unknown field {unknown[0]!r}", f"Fields are: {', '.join(names)}.")

    def text(self, name: str) -> str:
        value = self._value(name)
        if not isinstance(value, str):
            self._wrong(name, value, "a string")
        half = next((place for place, letter in enumerate(value, start=1) if "\ud800" <= letter <= "\udfff"), None)
        if half is not None:
            _refuse(
                f"{self.subject}: {name} has half a surrogate pair, {ascii(value[half - 1])[1:-1]}, "
                f"at character {half}: {_shown(value)}",
                "Write the whole character, or another one: half a pair is not text, and no database stores it.",
            )
        return value

    def word(self, name: str, words: type[_Word]) -> _Word:
        value = self._value(name)
        if value not in list(words):
            self._wrong(name, value, f"one of {', '.join(words)}")
        return words(value)

    def flag(self, name: str) -> bool:
        value = self.values.get(name, False)
        if not isinstance(value, bool):
            self._wrong(name, value, "true or false")
        return value

    def whole(self, name: str, *, at_least: int | None = 0, default: int | None = None) -> int:
        value = self._value(name) if default is None else self.values.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool):
            self._wrong(name, value, "a whole number")
        if at_least is not None and not at_least <= value < _MOST:
            self._wrong(name, value, f"a whole number from {at_least} to below 2^62")
        return value

    def many(self, name: str) -> list[Any]:
        value = self._value(name)
        if not isinstance(value, list):
            self._wrong(name, value, "a list")
        return value

    def ids(self, name: str, count: int) -> tuple[TensorId, ...]:
        for value in self.many(name):
            if not isinstance(value, int) or isinstance(value, bool):
                self._wrong(name, value, "a list of tensors' ids, which are whole numbers")
            if not 0 <= value < count:
                way_out = f"There are {count} tensors, with ids from 0."
                _refuse(f"{self.subject} {name} tensor {value}, which is unknown", way_out)
        return tuple(TensorId(value) for value in self.values[name])

    def _value(self, name: str) -> Any:
        if name not in self.values:
            _refuse(f"{self.subject} has no field {name!r}", f"Add it; a graph is of version {VERSION}.")
        return self.values[name]

    def _wrong(self, name: str, value: Any, expected: str) -> NoReturn:
        _refuse(f"{self.subject}: {name} is {_shown(value)}", f"It must be {expected}.")


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _refuse(message: str, hint: str, cause: Exception | None = None) -> NoReturn:
    raise RequestError(message, hint=hint) from cause
