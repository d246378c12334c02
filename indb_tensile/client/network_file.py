"""Exports the network of a model alone, for torch.export and for ONNX. Both are for export only.

The network takes encoded rows, float32 of shape (rows, …), and gives logits or standardised values. The encoding is
not in the file: texts, times and missing values have no operators in either format. The recipe is in the file's
metadata, and `Model.encode` applies it.
"""

import io
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from indb_tensile.client.model_file import KEY, ModelFile, written_file
from indb_tensile.errors import UnsupportedError
from indb_tensile.request.network_rules import ESTIMATORS

_EXAMPLE_ROWS = 2  # torch.export takes a size of 1 as a constant


def write_network_file(path: Path, file: ModelFile) -> None:
    """Write the network of a checked model; the suffix chooses the format.

    Raises UnsupportedError for a model of scikit-learn, for a network that the exporter refuses, and without the
    libraries of ONNX.
    """
    kind = file.recipe["architecture"]["type"]
    if kind in ESTIMATORS:
        raise UnsupportedError(
            f"a {kind} model is no network, and has no {path.suffix} form", hint="Export it as .safetensors."
        )
    if path.suffix == ".pt2":
        _write_pt2(path, file)
    else:
        _write_onnx(path, file)


def _write_pt2(path: Path, file: ModelFile) -> None:
    import torch

    written = io.BytesIO()
    torch.export.save(_exported(path, file), written, extra_files={KEY: json.dumps(file.recipe)})
    with written_file(path) as target:
        target.write(written.getbuffer())


def _write_onnx(path: Path, file: ModelFile) -> None:
    import torch

    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f"ONNX files need {error.name}, which is not installed",
            hint="Install it: pip install 'indb-tensile[onnx]'.",
        ) from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns of its own parts
        program = torch.onnx.export(_exported(path, file), dynamo=True, verbose=False)
    assert program is not None
    proto: Any = program.model_proto
    entry = proto.metadata_props.add()
    entry.key, entry.value = KEY, json.dumps(file.recipe)
    with written_file(path) as target:
        target.write(proto.SerializeToString())


def _exported(path: Path, file: ModelFile) -> Any:
    """Return the network as torch.export captures it, for any number of rows."""
    import torch

    from indb_tensile.learning.models.artifacts import ModelBundle

    bundle = ModelBundle.load(file.recipe["bundle"], file.weights)
    example = torch.zeros((_EXAMPLE_ROWS, *bundle.input_shape))
    shapes: Mapping[int, Any] = {0: torch.export.Dim("rows", min=1)}
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            return torch.export.export(bundle.module(), (example,), dynamic_shapes=(shapes,))
    except Exception as error:
        raise UnsupportedError(
            f"torch.export cannot write this network to {path.name}: {str(error).splitlines()[0][:200]}",
            hint="Export it as .safetensors.",
        ) from error
