"""A model that cannot be captured is refused at capture with the fault, its place and the way out."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from indb_tensile.errors import RequestError
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.step_capture import capture_training
from indb_tensile.executor.capture.step_trace import Loss
from indb_tensile.executor.latency.calibrate import calibrate, unknown_signatures
from indb_tensile.executor.run.runner import Runner
from indb_tensile.executor.run.state import State
from indb_tensile.scheduler.memory.peak import LIVENESS
from tests.device.memory_device import MemoryDevice
from tests.executor.conftest import GRANT_BYTES
from tests.executor.plans import random_plan

X, Y = torch.zeros(4, 3), torch.zeros(4, 3)
TOKENS = torch.zeros(4, dtype=torch.int64)


class Computing(nn.Module):
    """Applies a linear layer, then the function `then`. Has a buffer named `kept`."""

    def __init__(self, then: Callable[[torch.Tensor], object], buffer: torch.Tensor | None = None) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.then = then
        self.register_buffer("kept", buffer)

    def forward(self, x: torch.Tensor) -> object:
        return self.then(self.layer(x))


def same(x: torch.Tensor) -> torch.Tensor:
    return x


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize(
    ("module", "x", "fault", "hint"),
    [
        (lambda: Computing(same, torch.eye(3).to_sparse()), X, "buffer kept is sparse: .*sparse_coo", "to_dense"),
        (lambda: Computing(same, torch.eye(3).to_sparse_csr()), X, "buffer kept is sparse: .*sparse_csr", "to_dense"),
        (
            lambda: nn.Embedding(9, 3, sparse=True),
            TOKENS,
            r"gradient of the model \(Embedding\) is sp",
            "sparse=False",
        ),
        (
            lambda: nn.Sequential(nn.EmbeddingBag(9, 3, mode="sum", sparse=True)),
            TOKENS.view(2, 2),
            r"gradient of 0 \(EmbeddingBag\) is sparse",
            "sparse=False",
        ),
        (lambda: Computing(lambda h: h.to_sparse().sin().to_dense()), X, "(?i)spars", "to_dense"),
        (lambda: Computing(lambda h: torch.from_numpy(h.detach().numpy())), X, r"\.numpy\(\) is not supp", "numpy"),
        (lambda: Computing(lambda h: h * h.data_ptr()), X, "Cannot access data pointer", "addresses"),
        (lambda: Computing(lambda h: h * h.sum().item()), X, "depends on the values", "torch.where"),
        (lambda: nn.Sequential(nn.LazyLinear(3)), X, "parameter 0.weight is not initialised", "Call the model once"),
        (lambda: Computing(lambda h: h @ torch.ones(5)), X, r"batch of shape \(4, 3\).* size mismatch", "Fix"),
        (lambda: Computing(lambda h: (h, h)), X, "the loss cannot be computed on", "Fix"),
        (lambda: nn.Linear(3, 3), X[:0], r"a batch of shape \(0, 3\) has no rows", "at least 1"),
    ],
)
def test_a_model_that_cannot_be_captured_is_refused(
    module: Callable[[], nn.Module], x: torch.Tensor, fault: str, hint: str
) -> None:
    with pytest.raises(RequestError, match=fault) as caught:
        capture_training(module(), functional.mse_loss, x, Y[: len(x)], OptimizerSettings())
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("loss", "fault"),
    [
        (lambda predicted, y: None, "the loss is not a tensor but of type NoneType"),
        (lambda predicted, y: (predicted - y).sum().to(torch.complex64), "the loss is complex"),
        (lambda predicted, y: predicted - y, r"the loss has shape \(4, 3\)"),
    ],
)
def test_a_loss_that_is_no_real_number_is_refused(loss: Loss, fault: str) -> None:
    with pytest.raises(RequestError, match=fault) as caught:
        capture_training(nn.Linear(3, 3), loss, X, Y, OptimizerSettings())
    assert "It must be one" in caught.value.hint


def test_labels_without_rows_are_refused() -> None:
    with pytest.raises(RequestError, match=r"the labels' batch of shape \(\) has no rows") as caught:
        capture_training(nn.Linear(3, 3), functional.mse_loss, X, torch.zeros(()), OptimizerSettings())
    assert "first dimension counts its rows" in caught.value.hint


def test_an_embedding_bag_with_sums_is_trained() -> None:
    torch.manual_seed(0)
    module = nn.EmbeddingBag(9, 3, mode="sum")
    x, y = torch.randint(0, 9, (4, 2)), torch.randn(4, 3)
    assert trained(module, x, y, OptimizerSettings(kind="sgd"))["weight"].shape == (9, 3)


class Complex(nn.Module):
    """Multiplies by complex weights, stored as complex numbers or as pairs of real numbers."""

    def __init__(self, *, real: bool) -> None:
        super().__init__()
        weight = torch.randn(3, 3, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
        self.weight = nn.Parameter(torch.view_as_real(weight).clone() if real else weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight if self.weight.is_complex() else torch.view_as_complex(self.weight)
        return (x.to(torch.complex64) @ weight).abs()


@pytest.mark.parametrize(
    "settings",
    [
        OptimizerSettings(kind="sgd", momentum=0.9),
        OptimizerSettings(kind="adamw", weight_decay=0.1),
        OptimizerSettings(kind="adagrad"),
        OptimizerSettings(kind="rmsprop", centered=True, momentum=0.5),
        OptimizerSettings(kind="lion", weight_decay=0.1),
    ],
    ids=lambda settings: settings.kind,
)
def test_complex_parameters_are_trained_as_pairs_of_real_numbers(settings: OptimizerSettings) -> None:
    torch.manual_seed(1)
    x, y = torch.randn(4, 3), torch.randn(4, 3)
    complex_state, pairs = (trained(Complex(real=real), x, y, settings) for real in (False, True))
    for name, tensor in complex_state.items():
        as_pairs = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        assert torch.equal(as_pairs, pairs[name]), name


def trained(
    module: nn.Module, x: torch.Tensor, y: torch.Tensor, settings: OptimizerSettings
) -> dict[str, torch.Tensor]:
    """Return the state after three iterations under a plan that moves every tensor.

    The state must equal the state without a plan.
    """
    captured = (capture_training(module, functional.mse_loss, x, y, settings),)
    steps = calibrate(captured, unknown_signatures(captured, {}), {}, GRANT_BYTES).steps
    states = []
    for plan in (LIVENESS, random_plan(steps[0].graph, 1, share=1.0)):
        state = State.create(module, settings)
        runner = Runner(MemoryDevice(), state, steps)
        runner.adopt((plan,), 1)
        for _ in range(3):
            runner.train(x, y, 0.01)
        states.append(state.export())
        runner.close()
    assert all(torch.equal(states[0][name], tensor) for name, tensor in states[1].items())
    return states[0]
