"""Descriptions of operators as the latency predictor reads them: a few named operators, and a strategy for arbitrary
ones.
"""

from hypothesis import strategies as st

from indb_tensile.scheduler.timing.operator_features import Description, Layout


def contiguous(*shape: int) -> Layout:
    """Return the layout of a contiguous tensor of 32-bit numbers."""
    stride, step = [], 1
    for extent in reversed(shape):
        stride.append(step)
        step *= extent
    return Layout(dtype="float32", itemsize_bytes=4, shape=shape, stride=tuple(reversed(stride)))


def elementwise(elements: int, name: str = "aten.relu.default") -> Description:
    """Describe an operator that writes one number for each number it reads."""
    row = contiguous(elements)
    return Description(name=name, inputs=(row,), outputs=(row,), parameters=(), flops=elements)


def dense(rows: int, inner: int, columns: int) -> Description:
    """Describe a product of two matrices."""
    return Description(
        name="aten.mm.default",
        inputs=(contiguous(rows, inner), contiguous(inner, columns)),
        outputs=(contiguous(rows, columns),),
        parameters=(),
        flops=2 * rows * inner * columns,
    )


def convolution(*, groups: int = 1, stride: int = 1) -> Description:
    """Describe a convolution of 8 images of 16 channels and 32 x 32 pixels with 16 filters of 3 x 3."""
    pixels = 32 // stride
    return Description(
        name="aten.convolution.default",
        inputs=(contiguous(8, 16, 32, 32), contiguous(16, 16 // groups, 3, 3)),
        outputs=(contiguous(8, 16, pixels, pixels),),
        parameters=((float(stride), float(stride)), (1.0, 1.0), (1.0, 1.0), (0.0,), (0.0, 0.0), (float(groups),)),
        flops=2 * 8 * 16 * pixels * pixels * 16 // groups * 9,
    )


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Draw any layout whose number of elements fits in 64 bits."""
    shape = draw(st.lists(st.integers(0, 4096), max_size=4))
    stride = [draw(st.integers(0, 2**40)) for _ in shape]
    size = draw(st.sampled_from((1, 2, 4, 8)))
    return Layout(dtype=f"float{8 * size}", itemsize_bytes=size, shape=tuple(shape), stride=tuple(stride))


NAMES = (
    "aten.relu.default",
    "aten.mm.default",
    "aten.convolution.default",
    "aten.convolution_backward.default",
    "aten._fused_adam_.default",
    "upload",
    "",
)


def descriptions() -> st.SearchStrategy[Description]:
    """Draw any description, of a known or unknown operator, with or without a sensible meaning."""
    numbers = st.floats(allow_nan=False) | st.integers(-(2**62), 2**62).map(float)
    return st.builds(
        Description,
        name=st.sampled_from(NAMES) | st.text(max_size=8),
        inputs=st.lists(layouts(), max_size=5).map(tuple),
        outputs=st.lists(layouts(), max_size=3).map(tuple),
        parameters=st.lists(st.lists(numbers, max_size=3).map(tuple), max_size=8).map(tuple),
        flops=st.integers(0, 2**63),
    )
