"""Tensors written one after the other give the file that safetensors itself writes."""

import math
from collections.abc import Mapping

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from indb_tensile.errors import DataError
from indb_tensile.learning.networks.tensorstream import TensorSpec, stream

TYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.float16,
    torch.bfloat16,
    torch.int32,
    torch.float32,
    torch.complex64,
    torch.float64,
    torch.int64,
)


def specs(tensors: Mapping[str, Tensor]) -> dict[str, TensorSpec]:
    return {name: TensorSpec.of(tensor) for name, tensor in tensors.items()}


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, Tensor]:
    made = {}
    for name in draw(st.sets(st.text(st.characters(exclude_categories=["Cs"])), max_size=6)):
        shape = draw(st.lists(st.integers(0, 3), max_size=3))
        values = torch.arange(1, 1 + math.prod(shape)).reshape(shape).to(draw(st.sampled_from(TYPES)))
        turned = draw(st.booleans())
        made[name] = values.transpose(0, -1) if shape and turned else values
    return made


@given(tensors(), st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.text('é"\\\n'), max_size=1))
def test_the_bytes_equal_those_of_the_safetensors_library(made: dict[str, Tensor], metadata: dict[str, str]) -> None:
    whole = {name: tensor.contiguous() for name, tensor in made.items()}
    expected = safetensors.torch.save(whole, metadata or None)
    assert b"".join(stream(specs(made), made.__getitem__, metadata)) == expected


def test_a_tensor_is_read_only_when_it_is_written() -> None:
    made = {"a": torch.ones(2), "b": torch.ones(3)}
    read: list[str] = []

    def tensor(name: str) -> Tensor:
        read.append(name)
        return made[name]

    parts = stream(specs(made), tensor, {})
    next(parts)
    assert read == []
    next(parts)
    assert read == ["a"]


def test_a_tensor_of_another_or_unsupported_type_is_refused() -> None:
    made = {"a": torch.ones(2)}
    with pytest.raises(DataError, match=r"tensor a is .*float32.*, its specification is .*int64"):
        list(stream({"a": TensorSpec(torch.int64, (2,))}, made.__getitem__, {}))
    with pytest.raises(DataError, match=r"tensor z is torch\.complex128, which safetensors cannot hold"):
        list(stream({"z": TensorSpec(torch.complex128, (2,))}, made.__getitem__, {}))
