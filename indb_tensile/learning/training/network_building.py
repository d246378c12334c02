"""Builds the network of a training with its first weights, before and after the rows are encoded."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from indb_tensile.errors import DataError, RequestError
from indb_tensile.learning.encoding.packed_rows import UnpackedRows
from indb_tensile.learning.encoding.preprocessor import Preprocessor
from indb_tensile.learning.networks import architectures
from indb_tensile.learning.networks.hyperparams import TrainingSettings
from indb_tensile.learning.networks.registered_network import RegisteredNetwork
from indb_tensile.learning.networks.requirements import AvailableMemory, Requirements
from indb_tensile.learning.networks.row_embeddings import fit_embeddings
from indb_tensile.learning.networks.two_towers import TwoTowers
from indb_tensile.learning.training.learnable_rows import FEWEST_TRAIN_ROWS
from indb_tensile.learning.training.starting_weights import StartingWeights


def build_module(
    architecture: dict[str, Any],
    preprocessor: Preprocessor,
    settings: TrainingSettings,
    room: AvailableMemory | None,
    start: StartingWeights | None,
    network: RegisteredNetwork | None,
) -> nn.Module:
    """Return the network with its first weights, if it fits in `room`."""
    shape, outputs, frozen = preprocessor.input_shape, preprocessor.target.outputs, settings.freeze or ()
    empty_module = architectures.build_without_memory(
        architecture,
        shape,
        outputs,
        task=preprocessor.target.task,
        ensemble=settings.ensemble,
        network=network,
    )
    if room is not None:
        architectures.freeze(empty_module, frozen)
        Requirements.of(empty_module, settings).check(room)
    module = architectures.with_first_weights(empty_module, settings.seed)
    if start is not None:
        start.load_into(module, preprocessor)
    architectures.freeze(module, frozen)
    return module


def fit_first_weights(
    module: nn.Module,
    numbers: Tensor | UnpackedRows,
    start: StartingWeights | None,
    features: Sequence[str],
    preprocessor: Preprocessor,
) -> None:
    """Fit to the encoded training rows those first weights that depend on them."""
    if isinstance(module, TwoTowers):
        module.fit(torch.as_tensor(numbers[:]))  # which are no UnpackedRows: rows of pairs are not narrow
    elif start is None or features != start.features:
        fit_embeddings(module, numbers)
    if start is not None and features != start.features:
        start.load_into(module, preprocessor)  # again, for the embeddings of the columns that the version knows


def require_batches(module: nn.Module, rows: int, settings: TrainingSettings) -> None:
    """Raise DataError for too few training rows, and RequestError if batch normalisation gets batches of one row."""
    if rows < FEWEST_TRAIN_ROWS:
        hint = "Add rows, or make the test and validation parts smaller with split."
        raise DataError(f"{rows} row falls to the training part, {FEWEST_TRAIN_ROWS} are needed", hint=hint)
    normalises = any(isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d) for part in module.modules())
    for name in ("batch_size", "micro_batch_size"):
        if normalises and getattr(settings, name) == 1:
            hint = f'Set "{name}" to 2 or more, or train without batch normalisation.'
            raise RequestError("batch normalisation cannot learn from batches of one row", hint=hint)
