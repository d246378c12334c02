"""Check that a file that is no model of ours is refused by name, before anything is built from it."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from indb_tensile.client import Model
from indb_tensile.client.model_file import KEY, read_model_file, write_model_file
from indb_tensile.errors import RequestError, StorageError, UnsupportedError

RECIPE: dict[str, Any] = {
    "format": 1,
    "model": "m",
    "number": 1,
    "task": "regression",
    "target": "y",
    "architecture": {"type": "mlp"},
    "bundle": {},
    "parameters": 2,
    "metric_name": None,
    "metric": None,
    "higher_is_better": None,
    "metrics": {},
    "transform": None,
}
HEADER: dict[str, Any] = {
    "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
    "b": {"dtype": "F32", "shape": [], "data_offsets": [8, 12]},
}
DATA = bytes(range(12))


def packed(header: Any, data: bytes = DATA) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def with_recipe(**changes: Any) -> bytes:
    recipe = {name: value for name, value in (RECIPE | changes).items() if value is not ...}
    return packed({"__metadata__": {KEY: json.dumps(recipe)}} | HEADER)


def with_header(change: Callable[[dict[str, Any]], object], data: bytes = DATA) -> bytes:
    header = json.loads(json.dumps({"__metadata__": {KEY: json.dumps(RECIPE)}} | HEADER))
    change(header)
    return packed(header, data)


def test_a_written_file_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    stored = packed(HEADER)
    write_model_file(path, RECIPE, [stored[:5], stored[5:40], stored[40:]])
    file = read_model_file(path)
    assert file.recipe == RECIPE
    assert file.tensors == {"a": ("F32", (2,)), "b": ("F32", ())}
    assert file.weights.endswith(DATA)
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(RequestError, match="are the most"):
        read_model_file(path, most_bytes=100)
    with pytest.raises(StorageError, match="cannot be written"):
        write_model_file(tmp_path / "no" / "m.safetensors", RECIPE, [stored])


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "it is shorter than its header says"),
        (b"abc", "it is shorter than its header says"),
        (struct.pack("<Q", 1 << 62) + b"{}", "it is shorter than its header says"),
        (packed(b"{"), "its header is no JSON"),
        (packed(b"[" * 100_000), "its header is no JSON"),
        (packed([]), "its header is no JSON object"),
        (packed(HEADER), 'its metadata has no text "indb_tensile"'),
        (packed({"__metadata__": {KEY: "nothing"}}), "its recipe is no JSON"),
        (packed(b'{"a": 1, "a": 2}'), "'a' is there twice"),
        (with_recipe(model="\ud800"), "its recipe is no JSON"),
        (with_header(lambda h: h.update({"\ud800": h.pop("a")})), "its header is no JSON"),
        (with_recipe(extra=1), "its recipe has the unknown member 'extra'"),
        (with_recipe(task=...), 'its recipe lacks "task"'),
        (with_recipe(number="1"), '"number" of its recipe is a str'),
        (with_recipe(parameters=True), '"parameters" of its recipe is a bool'),
        (with_recipe(format=9), "it has format 9, and this version reads 1"),
        (with_header(lambda h: h["a"].update(dtype="OBJ")), "tensor 'a' has the unknown type 'OBJ'"),
        (with_header(lambda h: h["a"].update(shape=[-2])), "tensor 'a' has no shape of whole numbers"),
        (with_header(lambda h: h["a"].update(shape=[1 << 50])), "tensor 'a' has no shape of whole numbers"),
        (with_header(lambda h: h["a"].update(shape=[3])), "tensor 'a' has 8 bytes, and its shape [3] needs 12"),
        (
            with_header(lambda h: h["a"].update(more=1)),
            "tensor 'a' is not described by dtype, shape",
        ),
        (with_header(lambda h: h["b"].update(data_offsets=[0, 4])), "its tensors overlap or leave a gap at byte 4"),
        (with_header(lambda h: None, DATA + b"x"), "its tensors have 12 bytes, and the file has 13"),
        (with_header(lambda h: None, DATA[:-1]), "its tensors have 12 bytes, and the file has 11"),
    ],
)
def test_a_hostile_file_is_refused_by_name(tmp_path: Path, content: bytes, fault: str) -> None:
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(content)
    with pytest.raises(RequestError) as refused:
        read_model_file(path)
    assert refused.value.message.startswith(f"{path} is no model of indb-tensile: ")
    assert fault in refused.value.message


def test_a_link_beside_the_file_is_not_followed(tmp_path: Path) -> None:
    path, private = tmp_path / "m.safetensors", tmp_path / "private"
    private.write_text("kept")
    (tmp_path / f".{path.name}.{os.getpid()}.part").symlink_to(private)
    write_model_file(path, RECIPE, [packed(HEADER)])
    assert private.read_text() == "kept"
    assert not path.is_symlink()


def test_files_that_run_code_and_missing_files_are_refused(tmp_path: Path) -> None:
    for name in ("m.pt2", "m.pt", "m.pkl", "m.onnx"):
        with pytest.raises(UnsupportedError, match=r"only \.safetensors files are loaded"):
            Model.load(tmp_path / name)
    with pytest.raises(RequestError, match="cannot be read: No such file"):
        Model.load(tmp_path / "m.safetensors")
    (tmp_path / "m.safetensors").write_bytes(with_recipe())
    with pytest.raises(RequestError, match="is no model that this version reads"):
        Model.load(tmp_path / "m.safetensors")
