"""A network that cannot fit is refused before it is allocated, and a network that can run is never refused."""

from typing import Any

import pytest
import torch
from torch import nn

from indb_tensile.errors import HostMemoryError, MemoryLimitError, RequestError
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.step_capture import capture_training
from indb_tensile.learning.networks.hyperparams import TrainingSettings
from indb_tensile.learning.networks.requirements import AvailableMemory, Requirements
from indb_tensile.learning.training.preparation import assemble
from indb_tensile.scheduler.judges.peak_bound import least_bytes
from tests.device.preloaded import run
from tests.learning.tables import sample, spec

MIB = 1 << 20
ROOMY = 1 << 50


def available(**options: Any) -> AvailableMemory:
    values: dict[str, Any] = {
        "device_bytes": ROOMY,
        "limited": False,
        "host_pool_bytes": ROOMY,
        "host_bytes": ROOMY,
        "free_bytes": ROOMY,
    }
    return AvailableMemory(**values | options)


def settings(**options: Any) -> TrainingSettings:
    return TrainingSettings.parse(options, 100)


@pytest.mark.parametrize(
    ("optimizer", "state_bytes"),
    [
        ("sgd", 2 * 408),
        ("adam", 3 * 408),
        ("adamw", 3 * 408),
        ("adagrad", 2 * 408),
        ("rmsprop", 2 * 408),
        ("lion", 2 * 408),
    ],
)
def test_parameters_gradients_and_the_state_of_each_optimizer_are_counted(optimizer: str, state_bytes: int) -> None:
    module = nn.Sequential(nn.Linear(10, 8), nn.BatchNorm1d(8), nn.Linear(8, 1, bias=False), nn.Flatten())
    with torch.device("meta"):
        bare = nn.Sequential(nn.Linear(10, 8), nn.BatchNorm1d(8), nn.Linear(8, 1, bias=False), nn.Flatten())
    buffers = 2 * 8 * 4 + 8  # running mean and variance, and an integer that counts batches
    parameters = 4 * (10 * 8 + 8 + 8 + 8 + 8)
    expected = Requirements(
        update_bytes=2 * 4 * 80,
        weights_bytes=parameters + buffers,
        state_bytes=parameters * (state_bytes // 408) + buffers,
    )
    assert Requirements.of(module, settings(optimizer=optimizer)) == expected
    assert Requirements.of(bare, settings(optimizer=optimizer)) == expected


@pytest.mark.by_day("None-adam", "2-lion")
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad", "rmsprop", "lion"])
@pytest.mark.parametrize("micro_batch_size", [None, 2])
def test_no_captured_step_needs_less_memory_than_is_counted(optimizer: str, micro_batch_size: int | None) -> None:
    from indb_tensile.executor.capture.passes import Passes

    module = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 3))
    x, y = torch.zeros(4, 64), torch.zeros(4, dtype=torch.int64)
    passes = Passes(micro_batch_size=micro_batch_size, precision="bfloat16")
    step = capture_training(module, nn.CrossEntropyLoss(), x, y, OptimizerSettings(kind=optimizer), passes)
    counted = Requirements.of(module, settings(optimizer=optimizer))
    assert counted.update_bytes <= least_bytes(step.graph)
    persistent = sum(tensor.size_bytes for tensor in step.graph.tensors if tensor.persistent)
    assert Requirements.of(module, settings(optimizer=optimizer, **_momentum(optimizer))).state_bytes <= persistent


def _momentum(optimizer: str) -> dict[str, float]:
    return {"momentum": 0.0} if optimizer == "sgd" else {}


NEEDED = Requirements(update_bytes=10 * MIB, weights_bytes=30 * MIB, state_bytes=90 * MIB)


@pytest.mark.parametrize(
    ("bounds", "kind", "message"),
    [
        (
            {"device_bytes": 10 * MIB - 1},
            MemoryLimitError,
            "the network needs at least 10485760 B of device memory, more than the budget of 10485759 B",
        ),
        (
            {"device_bytes": 1024, "limited": True},
            MemoryLimitError,
            "the network needs at least 10.0 MB of device memory, more than its memory_limit of 1.0 kB",
        ),
        (
            {"device_bytes": 8 * MIB, "limited": True},
            MemoryLimitError,
            "the network needs at least 10.0 MB of device memory, more than its memory_limit of 8.0 MB",
        ),
        (
            {"device_bytes": 40 * MIB, "host_pool_bytes": 49 * MIB},
            MemoryLimitError,
            "the network's parameters and optimizer state take 90.0 MB, more than the budget of 40.0 MB and the host "
            "pool of 49.0 MB together",
        ),
        (
            {"host_bytes": 29 * MIB, "free_bytes": 5 * MIB},
            MemoryLimitError,
            "the network's weights take 30.0 MB, more than the 29.0 MB of host memory",
        ),
        (
            {"free_bytes": 29 * MIB},
            HostMemoryError,
            "the network's weights take 30.0 MB, and 29.0 MB of host memory are free now",
        ),
    ],
)
def test_each_exceeded_bound_has_its_own_message(bounds: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        NEEDED.check(available(**bounds))
    assert str(caught.value) == message
    assert isinstance(caught.value, RequestError) is (kind is MemoryLimitError), "a temporary shortage is retried"


def test_a_network_that_fits_exactly_is_not_refused() -> None:
    NEEDED.check(
        AvailableMemory(
            device_bytes=10 * MIB,
            limited=False,
            host_pool_bytes=80 * MIB,
            host_bytes=30 * MIB,
            free_bytes=30 * MIB,
        )
    )


def test_a_network_that_fits_is_prepared_as_without_a_bound() -> None:
    request = spec("target", hyperparams={"epochs": 1})
    free, bound = (
        assemble(sample("iris"), request),
        assemble(sample("iris"), request, available(device_bytes=64 * MIB)),
    )
    for (name, bounded), (_, unbounded) in zip(
        free.module.state_dict().items(), bound.module.state_dict().items(), strict=True
    ):
        assert torch.equal(bounded, unbounded), name


def test_a_refusal_allocates_no_memory() -> None:
    done = run("tests.learning.refusal_process")
    assert done.returncode == 0, done.stderr
    message, grown_mib = done.stdout.splitlines()
    assert message == "the network needs at least 2.98 GB of device memory, more than the budget of 600.0 MB"
    assert int(grown_mib) < 100


@pytest.mark.parametrize(
    ("bounds", "needs_bytes"),
    [
        ({"device_bytes": 10 * MIB - 1}, 10 * MIB),
        ({"device_bytes": 8 * MIB, "limited": True}, None),
        ({"device_bytes": 40 * MIB, "host_pool_bytes": 49 * MIB}, 41 * MIB),
        ({"device_bytes": 40 * MIB, "host_pool_bytes": 49 * MIB, "limited": True}, None),
        ({"host_bytes": 29 * MIB, "free_bytes": 5 * MIB}, None),
    ],
)
def test_refusal_names_the_budget_of_a_device_that_would_do(bounds: dict[str, Any], needs_bytes: int | None) -> None:
    with pytest.raises(MemoryLimitError) as caught:
        NEEDED.check(available(**bounds))
    assert caught.value.needs_bytes == needs_bytes
