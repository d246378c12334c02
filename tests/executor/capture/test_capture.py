"""A captured graph states the storages, roles, stages and signatures of a step. Capturing allocates no memory."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from indb_tensile.errors import GraphError, RequestError
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.step_capture import capture_evaluation, capture_training, check_same_persistent
from indb_tensile.scheduler.graph import Role, Stage
from tests.executor.conftest import captured, job_of
from tests.executor.models import DAILY_KINDS, LOSS, SHAPES, Constant, make_job
from tests.executor.other_process import other_process
from tests.nightly import nightly_unless

HUGE = 1_000_000  # the weight of a square layer of this size has 4 TB, more than any machine has
_VIEWS = ("aten.view", "aten.t.", "aten.transpose", "aten.expand", "aten.detach", "aten.split", "aten.unsqueeze")


def _huge() -> nn.Module:
    return nn.Sequential(nn.Linear(HUGE, HUGE), nn.BatchNorm1d(HUGE), nn.Linear(HUGE, 10))


def _on_meta() -> Iterator[tuple[nn.Module, torch.Tensor, torch.Tensor]]:
    with torch.device("meta"):
        yield _huge(), torch.empty(4, HUGE), torch.empty(4, dtype=torch.long)


def _on_fakes() -> Iterator[tuple[nn.Module, torch.Tensor, torch.Tensor]]:
    with FakeTensorMode():
        made = _huge(), torch.empty(4, HUGE), torch.empty(4, dtype=torch.long)
    yield made


@pytest.mark.parametrize("build", [_on_meta, _on_fakes])
def test_a_model_larger_than_any_memory_is_captured_from_shapes_alone(
    build: Callable[[], Iterator[tuple[nn.Module, torch.Tensor, torch.Tensor]]],
) -> None:
    module, x, y = next(build())
    settings = OptimizerSettings(clip_norm=1.0)
    steps = (capture_training(module, LOSS, x, y, settings), capture_evaluation(module, LOSS, x, y, settings))
    check_same_persistent(steps)
    weights = steps[0].graph.tensors[0]
    assert (weights.name, weights.size_bytes, weights.role) == ("0.weight", 4 * HUGE * HUGE, Role.PARAMETER)
    assert {p.device.type for p in module.parameters()} == {next(module.parameters()).device.type}


@pytest.mark.by_day("tied")
@pytest.mark.parametrize("kind", nightly_unless(lambda kind: kind in ("cnn", "tied"), SHAPES))
def test_shapes_alone_give_the_graph_of_the_real_model(kind: str) -> None:
    job = job_of(kind)
    x, y = job.batches[0]
    with torch.device("meta"):
        module = SHAPES[kind][0]()
    if isinstance(module, Constant):
        module.scale = (torch.ones(6),)  # not a parameter: its values belong to the program, not to the graph
    shapes = capture_training(module, job.loss, x.to("meta"), y.to("meta"), job.settings)
    assert shapes.graph.signature == captured(kind)[0].graph.signature


@pytest.mark.by_day("cnn", "tied")
@pytest.mark.parametrize("kind", DAILY_KINDS)
def test_all_steps_of_a_job_give_the_same_ids_to_the_same_persistent_tensors(kind: str) -> None:
    training, tail, evaluation = captured(kind)
    check_same_persistent((training, tail, evaluation))
    count = len(training.persistent)
    assert training.graph.tensors[:count] == evaluation.graph.tensors[:count]
    accessed = {t for o in evaluation.graph.operators for t in (*o.reads, *o.writes)}
    assert not any(t.role is Role.OPTIMIZER_STATE for t in evaluation.graph.tensors if t.id in accessed)


@pytest.mark.parametrize("kind", nightly_unless(lambda kind: kind == "cnn", SHAPES))
def test_capturing_leaves_the_model_the_batch_and_the_random_number_generator_unchanged(kind: str) -> None:
    job = make_job(kind)
    job.module.eval()
    before = {name: value.clone() for name, value in job.module.state_dict().items()}
    random = torch.get_rng_state()
    assert job.steps
    assert not job.module.training
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(before[name], value) for name, value in job.module.state_dict().items())
    assert all(p.grad is None for p in job.module.parameters())


@pytest.mark.by_day("cnn", "transformer")
@pytest.mark.parametrize("kind", DAILY_KINDS)
def test_views_are_no_operators_and_stages_are_in_order(kind: str) -> None:
    graph = captured(kind)[0].graph
    assert not [o.name for o in graph.operators if o.name.startswith(_VIEWS)]
    stages = list(Stage)
    order = [stages.index(o.stage) for o in graph.operators]
    assert order == sorted(order)
    uploaded = [graph.tensors[t].name for o in graph.operators if o.stage is Stage.UPLOAD for t in o.writes]
    assert uploaded[:2] == ["x", "y"]
    assert all(graph.tensors[o.writes[0]].role is Role.INPUT for o in graph.operators if o.stage is Stage.UPLOAD)


def test_a_view_is_an_access_of_its_storage() -> None:
    graph = captured("mlp")[0].graph
    names = {t.id: t.name for t in graph.tensors}
    forward = next(o for o in graph.operators if o.name == "aten.addmm.default")
    assert {names[t] for t in forward.reads} == {"0.bias", "x", "0.weight"}, (
        "the weight is read through its transpose"
    )


def test_running_statistics_are_copied_into_their_buffers() -> None:
    graph = captured("cnn")[0].graph
    names = {t.id: t.name for t in graph.tensors}
    copies = [names[o.writes[0]] for o in graph.operators if o.name == "aten.copy_.default"]
    assert sorted(copies) == ["1.num_batches_tracked", "1.running_mean", "1.running_var"]


def test_an_operator_that_draws_random_numbers_is_marked_random() -> None:
    graph = captured("cnn")[0].graph
    assert [o.name for o in graph.operators if o.random] == ["aten.native_dropout.default"]


def test_the_flops_of_a_grouped_convolutions_backward_are_its_forwards_for_each_gradient() -> None:
    module = nn.Sequential(nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3, groups=8), nn.Flatten(), nn.Linear(32, 5))
    x, y = torch.empty(2, 8, 6, 6), torch.empty(2, dtype=torch.int64)
    graph = capture_training(module, LOSS, x, y, OptimizerSettings()).graph
    flops = [(o.stage, o.flops) for o in graph.operators if "convolution" in o.name]
    dense, grouped = 2 * 2 * 8 * 8 * 9 * 16, 2 * 2 * 8 * 9 * 4
    # The first convolution's input is the batch, which needs no gradient.
    assert flops == [
        (Stage.FORWARD, dense),
        (Stage.FORWARD, grouped),
        (Stage.BACKWARD, 2 * grouped),
        (Stage.BACKWARD, dense),
    ]


def test_flops_count_two_for_each_multiplication_of_a_product_and_one_for_each_element_of_other_operators() -> None:
    graph = captured("mlp")[0].graph
    flops = [(o.name, o.flops) for o in graph.operators if o.stage is Stage.FORWARD]
    assert flops[0] == ("aten.addmm.default", 2 * 8 * 6 * 16)
    assert flops[1] == ("aten.relu.default", 8 * 16)


def test_a_constant_that_a_model_closes_over_is_uploaded_with_the_batch() -> None:
    step = captured("constant")[0]
    uploads = [o for o in step.graph.operators if o.stage is Stage.UPLOAD]
    assert [step.graph.tensors[o.writes[0]].size_bytes for o in uploads] == [8 * 6 * 4, 8 * 8, 6 * 4]
    assert torch.equal(next(iter(step.constants.values())), torch.linspace(0.5, 1.5, 6))


def test_a_tied_weight_is_one_tensor() -> None:
    module = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False))
    module[2].weight = module[0].weight
    settings = OptimizerSettings(kind="sgd")
    step = capture_training(module, LOSS, torch.zeros(2, 4), torch.zeros(2, dtype=torch.long), settings)
    assert [t.name for t in step.persistent] == ["0.weight"]
    assert sum(o.name == "aten._fused_sgd_.default" for o in step.graph.operators) == 1


def test_signatures_depend_on_shapes_and_not_on_names() -> None:
    training, tail, _ = captured("mlp")
    assert training.graph.signature != tail.graph.signature
    linear = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    step = capture_training(linear, LOSS, torch.zeros(2, 6), torch.zeros(2, dtype=torch.long), OptimizerSettings())
    first, second = [o for o in step.graph.operators if o.name == "aten.addmm.default"]
    assert first.signature == second.signature
    assert first.reads != second.reads
    assert all(len(o.signature) == 64 and int(o.signature, 16) >= 0 for o in step.graph.operators)


@pytest.mark.nightly
@pytest.mark.parametrize("hash_seed", nightly_unless(lambda seed: seed == "1", ["1", "2"]))
def test_signatures_are_the_same_in_every_process(hash_seed: str) -> None:
    """The other process has a hash seed of its own."""
    own_signatures = [" ".join([step.graph.signature, *sorted(step.signatures)]) for step in captured("cnn")]
    assert other_process(hash_seed).signatures == own_signatures


def test_a_loss_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(RequestError, match=r"the loss has shape \(2,\)"):
        capture_training(
            nn.Linear(3, 2),
            nn.CrossEntropyLoss(reduction="none"),
            torch.zeros(2, 3),
            torch.zeros(2, dtype=torch.long),
            OptimizerSettings(),
        )


def test_a_model_with_nothing_to_train_is_refused() -> None:
    module = nn.Linear(3, 2).requires_grad_(False)
    batch = torch.zeros(2, 3), torch.zeros(2, dtype=torch.long)
    with pytest.raises(RequestError, match="no parameter that the loss depends on"):
        capture_training(module, LOSS, *batch, OptimizerSettings())


class _Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.layer(x)
        return hidden if hidden.detach().sum() > 0 else -hidden


def test_a_model_that_branches_on_its_values_is_refused() -> None:
    batch = torch.zeros(2, 3), torch.zeros(2, dtype=torch.long)
    with pytest.raises(RequestError, match="depends on the values"):
        capture_training(_Branches(), LOSS, *batch, OptimizerSettings())


def test_steps_of_different_optimizers_are_refused_together() -> None:
    job = job_of("mlp")
    bare = capture_evaluation(job.module, LOSS, *job.held_out)
    assert all(t.role is Role.PARAMETER for t in bare.persistent)
    with pytest.raises(GraphError, match="other persistent tensors"):
        check_same_persistent((captured("mlp")[0], bare))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"kind": "lyon"}, "unknown"),
        ({"kind": "sgd", "momentum": 1.0}, "outside"),
        ({"eps": -1.0}, "not a finite number of at least 0"),
        ({"kind": "sgd", "nesterov": True}, "needs a momentum"),
        ({"clip_norm": 0.0}, "not positive"),
    ],
)
def test_optimizer_settings_out_of_range_are_refused(change: dict[str, object], fault: str) -> None:
    with pytest.raises(RequestError, match=fault):
        replace(OptimizerSettings(), **change)  # type: ignore[arg-type]
