"""The recorder tells results on the host from device memory, and describes equal calls once."""

import torch

from indb_tensile.executor.capture.record import Recorder
from indb_tensile.executor.capture.step_trace import fake_mode
from indb_tensile.scheduler.graph import Role, Stage


def test_the_random_seed_of_attention_is_a_host_result_and_not_a_tensor_of_the_plan() -> None:
    recorder = Recorder(fake_mode())
    with recorder.mode:
        heads = torch.empty(2, 4, 8, 16)
    query = recorder.declare("query", Role.ACTIVATION, heads)
    recorder.call(
        Stage.FORWARD,
        torch.ops.aten._scaled_dot_product_efficient_attention.default,
        *(query, query, query, None, True),
        name="attention",
    )
    (call,) = recorder.calls
    sizes = {name: recorder.storages[recorder.values[name].storage].size_bytes for name in call.results if name}
    assert call.of_host == {"attention_2", "attention_3"}
    assert [size > 0 for size in sizes.values()] == [True, True, False, False]


def test_equal_calls_are_described_once() -> None:
    recorder = Recorder(fake_mode())
    with recorder.mode:
        x = recorder.declare("x", Role.INPUT, torch.empty(3, 4))
    for name in ("first", "second"):
        recorder.call(Stage.FORWARD, torch.ops.aten.add.Tensor, x, 1, name=name)
    recorder.call(Stage.FORWARD, torch.ops.aten.add.Tensor, x, 1.0, name="third")
    first, second, third = recorder.calls
    assert first.description is second.description
    assert first.signature == second.signature != third.signature
    assert len({call.writes for call in recorder.calls}) == 3
