"""Captured steps with in-place writes to nested views have the bits of the eager loop."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from indb_tensile.device.hardware import PROCESSOR_SPEED
from indb_tensile.errors import RequestError
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.executor.latency.calibrate import calibrate, unknown_signatures
from indb_tensile.executor.run.runner import Runner
from indb_tensile.job import JobId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS, floor, peak
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.planner import Workload, plan_jobs
from indb_tensile.scheduler.timing.latency import estimate
from tests.device.memory_device import MemoryDevice
from tests.executor.driving import bits, drive, state_bits
from tests.executor.eager import Eager
from tests.executor.models import Job
from tests.executor.plans import random_plan
from tests.nightly import few_examples, nightly_unless

ROW = (4, 5, 3)
GRANT_BYTES = 1 << 30

View = tuple[str, int, int, int]
Write = tuple[str, float]
Nest = tuple[tuple[View, ...], Write]


class Written(nn.Module):
    """Writes in place, through nested views, to the output of a linear layer or to a mask without gradients."""

    def __init__(self, nests: tuple[Nest, ...], *, masked: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 3)
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 3))
        self.nests = nests
        self.masked = masked

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.layer(x).clone()
        written = torch.zeros_like(hidden).detach() if self.masked else hidden
        view_before = written[1:, 1:3]
        for views, write in self.nests:
            target = written
            for view in views:
                target = viewed(target, view, multiple=self.masked)
            write_in_place(target, write, self.scale.detach() if self.masked else self.scale)
        return hidden * (1 + written) + view_before.sin().sum()


def viewed(tensor: torch.Tensor, view: View, *, multiple: bool) -> torch.Tensor:
    """Return a view of the tensor, or the tensor itself if the view is impossible.

    The numbers of the view are taken modulo the tensor's sizes.
    """
    name, first, second, third = view
    if tensor.dim() == 0:
        return tensor
    dim, other = first % tensor.dim(), second % tensor.dim()
    size = tensor.shape[dim]
    index = second % size
    key = [slice(None)] * dim + [slice(index, index + 1 + third % (size - index), 1 + first % 2)]
    possible: dict[str, Callable[[], torch.Tensor]] = {
        "slice": lambda: tensor[tuple(key)],
        "select": lambda: tensor.select(dim, index),
        "transpose": lambda: tensor.transpose(dim, other),
        "diagonal": lambda: tensor if dim == other else tensor.diagonal(0, dim, other),
        "unsqueeze": lambda: tensor.unsqueeze(dim),
        "flat": lambda: tensor.view(-1) if tensor.is_contiguous() else tensor,
        # A tensor that is expanded to more elements cannot be written.
        "expand": lambda: tensor.expand(*[1] * (third % 2), *tensor.shape),
        # Autograd refuses an in-place write to a view of an operator that returns several views.
        "unbind": lambda: tensor.unbind(dim)[index] if multiple else tensor,
        "split": lambda: torch.split(tensor, 1 + third % size, dim)[0] if multiple else tensor,
    }
    return possible[name]()


def write_in_place(target: torch.Tensor, write: Write, scale: torch.Tensor) -> None:
    """Change the elements of the view."""
    name, number = write
    match name:
        case "fill":
            target.fill_(number)
        case "copy":
            target.copy_(scale[0] * number)
        case "add":
            target.add_(scale[1], alpha=number)
        case "mul":
            target.mul_(number)
        case "index_put" if target.dim() > 0:
            target[torch.zeros(1, dtype=torch.int64)] = scale[2] * number
        case "masked_fill":
            target.masked_fill_(target.detach() > 0, number)
        case _:
            target.zero_()


VIEWS = st.tuples(
    st.sampled_from(
        ("slice", "slice", "select", "transpose", "diagonal", "unsqueeze", "flat", "expand", "unbind", "split")
    ),
    *[st.integers(0, 5)] * 3,
)
WRITES = st.tuples(
    st.sampled_from(("fill", "copy", "add", "mul", "index_put", "masked_fill", "zero")),
    st.sampled_from((0.0, 0.5, -2.0)),
)
NESTS = st.lists(st.tuples(st.lists(VIEWS, max_size=4).map(tuple), WRITES), min_size=1, max_size=3).map(tuple)


def prepared(module: nn.Module) -> tuple[Job, tuple[CapturedStep, ...]]:
    torch.manual_seed(1)
    batches = tuple((torch.randn(rows, *ROW), torch.randn(rows, *ROW)) for rows in (5, 3))
    job = Job(
        module=module,
        settings=OptimizerSettings(kind="sgd", momentum=0.9),
        batches=(batches[0], batches[0], batches[1]),
        held_out=batches[0],
        loss=nn.MSELoss(),
    )
    captured = job.steps
    return job, calibrate(captured, unknown_signatures(captured, {}), {}, GRANT_BYTES).steps


def tight_plans(steps: tuple[CapturedStep, ...]) -> tuple[Plan, ...]:
    graphs = tuple(step.graph for step in steps)
    workload = Workload(
        job=JobId(1), graphs=graphs, latency_ns=tuple(estimate(graph, PROCESSOR_SPEED) for graph in graphs)
    )
    link = Link(out_bytes_per_s=400_000_000, in_bytes_per_s=400_000_000)
    planned = plan_jobs([workload], budget_bytes=max(map(floor, graphs)), link=link)
    assert isinstance(planned, tuple)
    return planned[0].plans


def require_eager_bits(module: nn.Module) -> None:
    job, steps = prepared(module)
    eager = Eager(job)
    expected_seen, expected = bits(drive(eager, job, 1)), state_bits(eager.export())
    plans = ((LIVENESS,) * 3, tight_plans(steps), tuple(random_plan(step.graph, 1, share=1.0) for step in steps))
    for chosen in plans:
        device, state = MemoryDevice(), job.state()
        runner = Runner(device, state, steps)
        runner.adopt(chosen, 1)
        assert bits(drive(runner, job, 1)) == expected_seen, chosen
        assert state_bits(state.export()) == expected, chosen
        assert device.high_water_bytes == max(peak(s.graph, p) for s, p in zip(steps, chosen, strict=True))
        runner.close()


@pytest.mark.nightly
@few_examples()
@given(nests=NESTS, masked=st.booleans())
@example(nests=(((("transpose", 0, 1, 0),), ("masked_fill", 0.0)),), masked=False)  # the new value is contiguous
@example(nests=(((("expand", 0, 0, 0),), ("fill", -2.0)),), masked=False)  # the old value plus the difference rounds
def test_writes_through_any_nest_of_views_equal_eager_under_every_plan(nests: tuple[Nest, ...], masked: bool) -> None:
    require_eager_bits(Written(nests, masked=masked))


class _Applied(nn.Module):
    """Writes in place with a function that the test gives."""

    def __init__(self, write: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.write = write

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.layer(x).clone()
        self.write(hidden)
        return hidden.sin()


def _repeated(hidden: torch.Tensor) -> torch.Tensor:
    return hidden[:, :1].expand(-1, 4, -1, -1)


@pytest.mark.parametrize(
    "write",
    [
        lambda hidden: _repeated(hidden).fill_(0.3),
        lambda hidden: _repeated(hidden)[:, 2].mul_(0.3),
        lambda hidden: _repeated(hidden).detach().select(1, 0).zero_(),
        lambda hidden: torch.broadcast_to(hidden[:1], hidden.shape)[0].add_(1.0),
        lambda hidden: nn.functional.relu(_repeated(hidden), inplace=True),
        lambda hidden: hidden.unfold(1, 1, 2).fill_(0.3),  # torch would set what is between the windows to zero
    ],
    ids=["all", "part", "detached", "broadcast", "relu", "windows"],
)
def test_a_write_to_a_view_that_repeats_or_leaves_out_elements_is_refused(
    write: Callable[[torch.Tensor], object],
) -> None:
    with pytest.raises(RequestError, match="writes in place to a view of shape") as refused:
        prepared(_Applied(write))
    assert refused.value.hint.startswith("Clone the view before you write to it")


@pytest.mark.by_day("scatter_add")
@pytest.mark.parametrize(
    "write",
    [
        lambda view: view.scatter_add_(0, torch.zeros(1, 1, 1, 1, dtype=torch.int64), torch.ones(1, 1, 1, 1)),
        lambda view: view.cumsum_(0),
        lambda view: view.triu_(),
        lambda view: view.index_copy_(0, torch.zeros(1, dtype=torch.int64), view[:1].detach().clone()),
    ],
    ids=["scatter_add", "cumsum", "triu", "index_copy"],
)
def test_a_write_whose_new_value_would_have_another_order_in_memory_is_refused(
    write: Callable[[torch.Tensor], object],
) -> None:
    with pytest.raises(RequestError, match="whose elements are in another order in memory") as refused:
        prepared(_Applied(lambda hidden: write(hidden.transpose(0, 1))))
    assert "which returns a new tensor, or write to a contiguous tensor" in refused.value.hint
    assert prepared(_Applied(lambda hidden: write(hidden[1:])))


@pytest.mark.by_day("values")
@pytest.mark.parametrize(
    "module",
    [
        Written(((((("transpose", 0, 1, 0),)), ("masked_fill", 0.0)),), masked=False),
        _Applied(lambda hidden: hidden.transpose(0, 2).masked_fill_(mask=torch.tensor([True, False, True]), value=2)),
    ],
    ids=["values", "mask of one dimension"],
)
def test_a_view_in_another_order_is_filled_where_a_mask_says(module: nn.Module) -> None:
    require_eager_bits(module)


def test_a_repeated_view_can_be_read_and_its_clone_written() -> None:
    require_eager_bits(_Applied(lambda hidden: hidden[:, 1:].sub_(_repeated(hidden)[:, 1:].clone().mul_(0.3))))


@pytest.mark.by_day("True")
@pytest.mark.parametrize("masked", [False, True])
def test_a_slice_of_a_slice_is_written_in_place(masked: bool) -> None:
    views = (("slice", 0, 1, 1), ("slice", 1, 2, 1), ("transpose", 0, 2, 0))
    require_eager_bits(Written(((views, ("fill", 0.0)),), masked=masked))


class _Empty(nn.Module):
    """Computes with empty tensors, which it joins to a layer's output by `function`."""

    def __init__(self, function: Callable[[torch.Tensor, nn.Module], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(3, 3), nn.LayerNorm(3)
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.layer(x).clone()
        return self.function(hidden, self.norm).sin()


def _written(write: Callable[[torch.Tensor], object]) -> Callable[[torch.Tensor, nn.Module], torch.Tensor]:
    def function(hidden: torch.Tensor, _: nn.Module) -> torch.Tensor:
        write(hidden)
        return hidden

    return function


NO_ROWS = torch.zeros(0, dtype=torch.int64)
EMPTY: dict[str, Callable[[torch.Tensor, nn.Module], torch.Tensor]] = {
    "a slice is written": _written(lambda h: h[:0].mul_(2)),
    "a slice of a slice is written": _written(lambda h: h[1:][:0].zero_()),
    "inner columns are assigned": _written(lambda h: h.__setitem__((slice(None), slice(2, 2)), 0.5)),
    "written beside rows that are not empty": _written(lambda h: (h[:0].add_(1), h[0].mul_(3), h[:0].fill_(1))),
    "a flat view is written": _written(lambda h: h[:0].view(-1).mul_(2)),
    "a diagonal is written": _written(lambda h: h[:0, :0].diagonal().mul_(2)),
    "an expansion is written": _written(lambda h: h[:0].expand(0, 4, 5, 3).mul_(2)),
    "a part without a gradient is written": _written(lambda h: torch.split(h.detach(), [0, len(h)])[0].mul_(2)),
    "a mask is filled": _written(lambda h: h[:0].masked_fill_(h[:0].detach() > 0, 1.0)),
    "no index is put": _written(lambda h: h.__setitem__(NO_ROWS, 1.0)),
    "nothing is added by index": _written(lambda h: h.index_add_(0, NO_ROWS, h.detach()[:0].clone())),
    "joined": lambda h, _: torch.cat([torch.empty(0), h[:0], h, h[:0]]),
    "joined to nothing": lambda h, _: h + torch.cat([h[:0], h[:0]]).sum(),
    "stacked": lambda h, _: h + torch.stack([h[:0], h[:0]]).sum(),
    "made and written": lambda h, _: h + h.new_zeros(0).add_(1).sum(),
    "repeated": lambda h, _: h + h.repeat(0, 1, 1, 1).sum(),
    "selected": lambda h, _: h + h.index_select(0, NO_ROWS).sum(),
    "a batch of no rows is normalised": lambda h, norm: h + norm(h[:0]).sum() + norm(h),
    "a batch of no rows is convolved": lambda h, _: (
        h + nn.functional.conv1d(h[:0].flatten(2), torch.ones(2, 4, 1)).sum()
    ),
    "a product over no elements": lambda h, _: h + h[..., :0] @ torch.ones(0, 3) + h[:, :0].prod(),
}
DAILY_EMPTY = ("a slice is written", "joined to nothing", "a batch of no rows is normalised")


@pytest.mark.by_day("a slice", "joined")
@pytest.mark.parametrize("name", nightly_unless(lambda name: name in DAILY_EMPTY, EMPTY))
def test_empty_tensors_equal_eager(name: str) -> None:
    require_eager_bits(_Empty(EMPTY[name]))
