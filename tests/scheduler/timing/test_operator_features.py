"""Check an operator's features: they depend on the description alone, are finite for any description, and survive
JSON.
"""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.errors import DataError
from indb_tensile.scheduler.timing.latency import DeviceSpeed
from indb_tensile.scheduler.timing.operator_features import (
    WIDTH,
    Description,
    Layout,
    matrix,
    read_description,
    rooflines_ns,
    write_description,
)
from tests.nightly import some_examples
from tests.scheduler.descriptions import convolution, dense, descriptions, elementwise

SPEED = DeviceSpeed(flops_per_s=1_000_000_000, bytes_per_s=1_000_000_000, launch_ns=5)


def _layout(*shape: int, stride: tuple[int, ...]) -> Layout:
    return Layout(dtype="float32", itemsize_bytes=4, shape=shape, stride=stride)


@given(descriptions())
def test_features_are_finite_deterministic_and_of_one_width(description: Description) -> None:
    equal = replace(description)
    assert equal.features == description.features
    assert len(description.features) == WIDTH
    assert all(math.isfinite(number) for number in description.features)


@some_examples()
@given(st.lists(descriptions(), max_size=5))
def test_row_does_not_depend_on_other_rows(several: list[Description]) -> None:
    rows = matrix(several)
    assert rows.shape == (len(several), WIDTH)
    for row, description in zip(rows, several, strict=True):
        assert np.array_equal(row, matrix([description])[0])


@given(descriptions())
def test_description_reads_back_equal(description: Description) -> None:
    text = write_description(description)
    assert read_description(text) == description
    assert read_description(text).features == description.features
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{}",
        '{"name":"a","inputs":7,"outputs":[],"parameters":[],"flops":0}',
        '{"name":"a","inputs":[["float32",4,[2]]],"outputs":[],"parameters":[],"flops":0}',
        '{"name":"a","inputs":[["float32",4,[2],[1,1]]],"outputs":[],"parameters":[],"flops":0}',
        '{"name":"a","inputs":[["float32",4,[-2],[1]]],"outputs":[],"parameters":[],"flops":0}',
        '{"name":"a","inputs":[["float32",4,"22",[1,1]]],"outputs":[],"parameters":[],"flops":0}',
        '{"name":"a","inputs":[],"outputs":[],"parameters":[["x"]],"flops":0}',
        '{"name":"a","inputs":[],"outputs":[],"parameters":[],"flops":-1}',
        '{"name":"a","inputs":[],"outputs":[],"parameters":[],"flops":1' + 400 * "0" + "}",
        "[" * 100_000,
    ],
)
def test_text_that_is_no_description_is_refused(text: str) -> None:
    with pytest.raises(DataError):
        read_description(text)


def test_broadcast_dimension_is_read_once_and_transposed_tensor_has_runs_of_one() -> None:
    assert _layout(8, 16, stride=(0, 1)).size_bytes == 64
    assert _layout(8, 16, stride=(16, 1)).size_bytes == 512
    assert _layout(8, 16, stride=(16, 1)).run == 128
    assert _layout(8, 16, stride=(32, 1)).run == 16
    assert _layout(8, 16, stride=(1, 8)).run == 1
    assert _layout(8, 0, stride=(0, 1)).size_bytes == 0


def test_properties_that_slow_operators_down_change_their_features() -> None:
    plain = elementwise(1024)
    strided = replace(plain, inputs=(_layout(32, 32, stride=(1, 32)),))
    assert strided.features != replace(plain, inputs=(_layout(32, 32, stride=(32, 1)),)).features
    assert convolution(groups=1).features != convolution(groups=4).features
    assert convolution(stride=1).features != convolution(stride=2).features
    assert dense(8, 16, 32).features != dense(32, 16, 8).features
    assert replace(plain, parameters=((2.0,),)).features != plain.features


def test_roofline_is_the_longer_of_arithmetic_and_traffic() -> None:
    narrow = replace(elementwise(250), flops=1)  # 1,000 bytes in, 1,000 out
    heavy = replace(narrow, flops=7_000)
    assert rooflines_ns([narrow, heavy], SPEED).tolist() == [2_005, 7_005]
