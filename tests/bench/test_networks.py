"""Known networks are captured as step graphs, and the graphs are cached."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from indb_tensile.bench.harness.networks import known_networks as networks
from indb_tensile.bench.harness.networks.known_networks import NETWORKS, Network, graph_of, unrolled_lstm
from indb_tensile.errors import MissingError, RequestError
from indb_tensile.scheduler.graph import Role, Stage, StepGraph
from indb_tensile.scheduler.memory.peak import liveness_peak, vanilla_peak
from tests.bench.libraries import skip_without_library


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Use a cache directory of these tests alone."""
    path = tmp_path_factory.mktemp("graphs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(networks.CACHE_VARIABLE, str(path))
        yield path


def _captured(name: str, batch: int | None = None) -> StepGraph:
    network = NETWORKS[name]
    skip_without_library(network)
    return graph_of(name, batch)


# Liveness' saving against freeing nothing (metric MSR), and the number of trained parameters.
@pytest.mark.parametrize(("name", "saved", "trained"), [("vgg16", 0.45, 32), ("resnet50", 0.67, 161)])
def test_the_papers_networks_are_captured_completely(name: str, saved: float, trained: int) -> None:
    graph = _captured(name)
    assert 1 - liveness_peak(graph) / vanilla_peak(graph) == pytest.approx(saved, abs=0.01)
    assert sum(tensor.role is Role.PARAMETER for tensor in graph.tensors) == trained
    updates = [o for o in graph.operators if o.splittable]
    assert len(updates) == trained
    assert {o.stage for o in updates} == {Stage.OPTIMIZER}


def test_flops_are_counted_forward_and_twice_as_many_backward() -> None:
    graph = _captured("resnet50")
    multiply_adds = 4_089_184_256  # of one image, as torchvision documents for this network
    convolutions = [o for o in graph.operators if "convolution" in o.name or "addmm" in o.name]
    forward = sum(o.flops for o in convolutions if o.stage is Stage.FORWARD)
    assert forward == 2 * 16 * multiply_adds
    backward = sum(o.flops for o in convolutions if o.stage is Stage.BACKWARD)
    first = next(o for o in convolutions)
    # The image needs no gradient. The backward products of the classifier are called mm.
    assert backward == 2 * (forward - 2 * 16 * 2048 * 1000) - first.flops


@pytest.mark.nightly  # a capture of GPT-2
def test_the_flops_of_attention_are_those_of_its_products() -> None:
    graph = _captured("bert", 1)
    attention = [o.flops for o in graph.operators if "attention" in o.name and o.stage is Stage.FORWARD]
    assert attention == [2 * 2 * 512 * 512 * 768] * 12


@pytest.mark.nightly
def test_a_recurrent_network_has_operators_for_each_time_step() -> None:
    steps = 3
    network = Network(
        name="short",
        title="short",
        library="torch",
        batch=2,
        row=(steps,),
        label=(steps,),
        tokens=True,
        build=unrolled_lstm,
    )
    graph = networks.capture(network, 2)
    assert sum("tanh.default" in o.name for o in graph.operators) == 2 * 2 * steps


@pytest.mark.nightly
def test_a_u_net_is_captured_in_micro_batches_and_a_diffusion_u_net_whole() -> None:
    parts, whole = graph_of("unet", 8, 16), graph_of("diffusion_unet", 8, 16)
    # 14 convolutions of blocks, three on the way up, and the last
    convolutions = [
        sum("aten.convolution.default" in o.name and o.stage is Stage.FORWARD for o in graph.operators)
        for graph in (parts, whole)
    ]
    assert convolutions == [2 * 18, 18]
    assert [_largest_result(graph) for graph in (parts, whole)] == [4 * 128 * 16 * 16 * 4, 8 * 128 * 16 * 16 * 4]


def _largest_result(graph: StepGraph) -> int:
    forward = [o for o in graph.operators if o.stage is Stage.FORWARD]
    return max(graph.tensors[t].size_bytes for o in forward for t in o.writes)


def test_the_labels_of_a_network_are_resized_with_its_rows() -> None:
    _, _, x, y = networks.random_example(NETWORKS["unet"].resized(16), 2)
    assert (x.shape, y.shape, y.dtype, int(y.max())) == ((2, 3, 16, 16), (2, 16, 16), torch.int64, 1)
    _, loss, x, y = networks.random_example(NETWORKS["diffusion_unet"].resized(16), 2)
    assert (x.shape, y.shape, y.dtype) == ((2, 3, 16, 16), (2, 3, 16, 16), torch.float32)
    assert loss(x, y) == ((x - y) ** 2).mean()


def test_a_cached_graph_is_read_and_not_captured_again(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    built: list[int] = []

    def build(_: int) -> Any:
        from torch import nn

        built.append(1)
        return nn.Linear(3, 2)

    network = Network(name="tiny", title="tiny", library="torch", batch=4, row=(3,), build=build)
    monkeypatch.setattr(networks, "NETWORKS", {"tiny": network})
    assert graph_of("tiny") == graph_of("tiny")
    assert built == [1]
    assert [path.name.rpartition("-")[0] for path in cache.glob("tiny*")] == ["tiny-4"]


def test_an_unknown_network_and_an_impossible_batch_are_refused() -> None:
    with pytest.raises(MissingError, match="there is no network 'alexnet'"):
        graph_of("alexnet")
    with pytest.raises(RequestError, match="lstm cannot be captured at a batch of 0"):
        graph_of("lstm", 0)


def test_rows_too_small_for_a_network_are_refused_with_the_smallest_possible_size() -> None:
    def module(pixels: int) -> Any:
        from torch import nn

        assert pixels > 0
        return nn.Sequential(nn.Conv2d(3, 2, 5), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    network = Network(name="picky", title="picky", library="torch", batch=4, row=(3, 9, 9), build=module)
    networks.require_rows(network, 1)
    networks.require_rows(network.resized(5), 2)
    with pytest.raises(RequestError) as refused:
        networks.require_rows(network.resized(4), 3)
    assert refused.value.message == (
        "picky cannot be trained on 3 rows of 4 pixels a side: Calculated padded input size per channel: (4 x 4)."
        " Kernel size: (5 x 5). Kernel size can't be greater than actual input size"
    )
    assert refused.value.hint == "Give at least 5 pixels."
    with pytest.raises(
        RequestError, match="picky cannot be trained on 1 row of 5 pixels a side: Expected more"
    ) as single_row:
        networks.random_example(network.resized(5), 1)
    assert single_row.value.hint == "Give at least 6 pixels, or 2 rows."


def test_a_missing_library_is_reported_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(name="other", title="other", library="no-such-library", batch=4, row=(3,), build=_never)
    monkeypatch.setattr(networks, "NETWORKS", {"other": network})
    with pytest.raises(MissingError, match="comes from no-such-library, which is not installed"):
        graph_of("other")


def _never(_: int) -> Any:
    raise AssertionError


def test_a_network_for_smaller_rows_is_the_same_network() -> None:
    whole, small = _captured("squeezenet", 2), graph_of("squeezenet", 2, 64)
    assert [o.name for o in small.operators] == [o.name for o in whole.operators]
    assert liveness_peak(small) < liveness_peak(whole) / 2
    with pytest.raises(RequestError, match="squeezenet has no rows of 0"):
        graph_of("squeezenet", 2, 0)


def test_a_drawn_example_has_the_shape_that_its_network_accepts() -> None:
    module, loss, x, y = networks.random_example(NETWORKS["lstm"].resized(2), 3, seed=5)
    assert (x.shape, y.shape) == ((3, 2), (3, 2))
    value = loss(module(x), y)
    assert value.isfinite()
    again, _, same, _ = networks.random_example(NETWORKS["lstm"].resized(2), 3, seed=5)
    assert loss(again(same), y).equal(value)
