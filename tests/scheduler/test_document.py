"""Check the JSON form of step graphs: a written document reads back equal, and a wrong document is refused with its
fault named.
"""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.errors import RequestError
from indb_tensile.scheduler.document import Document, read_document, write_document
from indb_tensile.scheduler.graph import Operator, Role, Stage, StepGraph, Tensor, TensorId
from tests.scheduler.strategies import graphs, latencies

names = st.text(max_size=5)


@st.composite
def documents(draw: st.DrawFn) -> Document:
    """Draw a document of a valid graph, with or without latencies."""
    graph = draw(graphs())
    tensors = tuple(
        Tensor(id=t.id, name=draw(names), size_bytes=t.size_bytes * draw(st.sampled_from((1, 2**40))), role=t.role)
        for t in graph.tensors
    )
    operators = tuple(
        Operator(
            name=draw(names),
            signature=draw(names),
            stage=draw(st.sampled_from(Stage)),
            reads=o.reads,
            writes=o.writes,
            workspace_bytes=o.workspace_bytes,
            flops=draw(st.integers(0, 2**60)),
            random=draw(st.booleans()),
            splittable=draw(st.booleans()),
        )
        for o in graph.operators
    )
    named = StepGraph(tensors=tensors, operators=operators, signature=draw(names))
    return Document(name=draw(names), graph=named, latency_ns=draw(st.none() | latencies(graph)))


@given(documents())
def test_written_document_reads_back_equal(document: Document) -> None:
    assert read_document(write_document(document)) == document
    assert read_document(write_document(document).encode()) == document


def test_text_is_as_documented() -> None:
    assert json.loads(write_document(Document(name="net", graph=_graph(), latency_ns=(10, 20)))) == _document()


def test_fields_with_a_default_may_be_omitted() -> None:
    document = _document()
    for operator in document["operators"]:
        for field in ("workspace_bytes", "flops", "random", "splittable", "latency_ns"):
            del operator[field]
    plain = tuple(
        Operator(name=o.name, signature=o.signature, stage=o.stage, reads=o.reads, writes=o.writes)
        for o in _graph().operators
    )
    graph = StepGraph(tensors=_graph().tensors, operators=plain, signature="s")
    assert read_document(json.dumps(document)) == Document(name="net", graph=graph)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("format",), "png", 'the file\'s format is "png"'),
        (("version",), 2, "the graph's version is 2, and this program reads version 1"),
        (("version",), "1", 'the graph: version is "1"'),
        (("name",), 7, "the graph: name is 7"),
        (("name",), "net\ud800", "the graph: name has half a surrogate pair, \\ud800, at character 4"),
        (("tensors", 1, "name"), "\udfff", "tensor 1: name has half a surrogate pair, \\udfff, at character 1"),
        (("operators", 0, "signature"), "\udc00s", "operator 0 (make): signature has half a surrogate pair, \\udc00"),
        (("comment",), "x", "the graph has an unknown field 'comment'"),
        (("tensors",), {}, "the graph: tensors is {}"),
        (("tensors", 1), 5, "tensor 1 is 5, not an object"),
        (("tensors", 1, "id"), 3, "tensor 1 has id 3"),
        (("tensors", 0, "size_bytes"), -4, "tensor 0: size_bytes is -4"),
        (("tensors", 0, "size_bytes"), 0, "tensor 0: size_bytes is 0"),
        (("tensors", 0, "size_bytes"), 4.0, "tensor 0: size_bytes is 4.0"),
        (("tensors", 0, "size_bytes"), True, "tensor 0: size_bytes is true"),
        (("tensors", 0, "size_bytes"), 2**63, "tensor 0: size_bytes is 9223372036854775808"),
        (("tensors", 0, "size_bytes"), 2**62 - 1, "the graph adds up to 4611686018427388010 bytes"),
        (("tensors", 0, "role"), "weight", 'tensor 0: role is "weight"'),
        (("tensors", 0, "role"), ["input"], 'tensor 0: role is ["input"]'),
        (("operators",), [], "the step graph has no operator"),
        (("operators", 0, "stage"), "middle", 'operator 0 (make): stage is "middle"'),
        (("operators", 0, "reads"), [2], "operator 0 (make) reads tensor 2, which is unknown"),
        (("operators", 0, "writes"), [-1], "operator 0 (make) writes tensor -1, which is unknown"),
        (("operators", 0, "writes"), ["a"], 'operator 0 (make): writes is "a"'),
        (("operators", 0, "reads"), [0, 1], "operator 0 (make) reads a before it is written"),
        (("operators", 1, "workspace_bytes"), -1, "operator 1 (use): workspace_bytes is -1"),
        (("operators", 1, "flops"), None, "operator 1 (use): flops is null"),
        (("operators", 1, "random"), 1, "operator 1 (use): random is 1"),
        (("operators", 1, "latency_ns"), -5, "operator 1 (use): latency_ns is -5"),
        (("operators", 1, "latency_ns"), 2**62 - 5, "the graph adds up to 4611686018427387909 nanoseconds"),
        (("operators", 1, "fused"), True, "operator 1 (use) has an unknown field 'fused'"),
        (("operators", 1, "name"), 3, "operator 1: name is 3"),
    ],
)
def test_wrong_field_is_refused_and_named(path: tuple[Any, ...], value: Any, message: str) -> None:
    document = _document()
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    _assert_refused(json.dumps(document), message)


@pytest.mark.parametrize(
    ("path", "field", "message"),
    [
        ((), "version", "the graph has no field 'version'"),
        ((), "signature", "the graph has no field 'signature'"),
        (("tensors", 1), "role", "tensor 1 has no field 'role'"),
        (("operators", 1), "reads", "operator 1 (use) has no field 'reads'"),
        (("operators", 1), "latency_ns", "operator 1 (use) has no latency_ns, and operator 0 has one"),
        (("operators", 0), "latency_ns", "operator 0 (make) has no latency_ns, and operator 1 has one"),
    ],
)
def test_missing_field_is_refused_and_named(path: tuple[Any, ...], field: str, message: str) -> None:
    document = _document()
    parent = document
    for key in path:
        parent = parent[key]
    del parent[field]
    _assert_refused(json.dumps(document), message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is not JSON: Expecting value at line 1, column 1"),
        ("[1,\n2", "the file is not JSON: Expecting ',' delimiter at line 2, column 2"),
        ("[" * 100_000, "the file is nested too deep for a step graph"),
        ("[]", "the graph is [], not an object"),
        ("{}", "the file's format is null"),
        ('{"format": 1, "format": 2}', "field 'format' stands twice in one object"),
        ("1" * 5000, "the file has a number that cannot be read"),
        (b"\xff\xfe\xff", "the file is not text"),
    ],
)
def test_text_that_is_no_graph_is_refused(text: str | bytes, message: str) -> None:
    _assert_refused(text, message)


def test_latencies_that_are_all_zero_are_refused() -> None:
    document = _document()
    for operator in document["operators"]:
        operator["latency_ns"] = 0
    _assert_refused(json.dumps(document), "every operator's latency_ns is 0")


@given(st.binary(max_size=40) | st.text(max_size=40))
def test_arbitrary_text_is_refused_with_a_message(text: str | bytes) -> None:
    _assert_refused(text, "")


def _assert_refused(text: str | bytes, message: str) -> None:
    with pytest.raises(RequestError) as refusal:
        read_document(text)
    assert refusal.value.message.startswith(message)
    assert refusal.value.hint


def _graph() -> StepGraph:
    """Return the graph that `_document` describes."""
    return StepGraph(
        tensors=(
            Tensor(id=TensorId(0), name="p", size_bytes=8, role=Role.PARAMETER),
            Tensor(id=TensorId(1), name="a", size_bytes=100, role=Role.ACTIVATION),
        ),
        operators=(
            Operator(
                name="make",
                signature="m",
                stage=Stage.FORWARD,
                reads=(TensorId(0),),
                writes=(TensorId(1),),
                random=True,
            ),
            Operator(
                name="use",
                signature="u",
                stage=Stage.OPTIMIZER,
                reads=(TensorId(1),),
                writes=(TensorId(0),),
                workspace_bytes=7,
                flops=9,
                splittable=True,
            ),
        ),
        signature="s",
    )


def _document() -> dict[str, Any]:
    """Return the JSON object of `_graph` with every field given."""
    make = {"name": "make", "signature": "m", "stage": "forward", "reads": [0], "writes": [1], "latency_ns": 10}
    use = {"name": "use", "signature": "u", "stage": "optimizer", "reads": [1], "writes": [0], "latency_ns": 20}
    return {
        "format": "indb-tensile step graph",
        "version": 1,
        "name": "net",
        "signature": "s",
        "tensors": [
            {"id": 0, "name": "p", "size_bytes": 8, "role": "parameter"},
            {"id": 1, "name": "a", "size_bytes": 100, "role": "activation"},
        ],
        "operators": [
            {**make, "workspace_bytes": 0, "flops": 0, "random": True, "splittable": False},
            {**use, "workspace_bytes": 7, "flops": 9, "random": False, "splittable": True},
        ],
    }
