"""The form of float32 in which a GPU computes products and convolutions, as part of operators' signatures.

TensorFloat-32 keeps float32's range and 10 bits of its fraction. A GPU of capability 8.0 or later computes several
times faster in this form. By default torch uses it for convolutions and not for products (PyTorch, CUDA semantics:
TensorFloat-32), and `torch` means this default here. A bit-for-bit comparison needs equal settings on both sides,
whichever they are. On a processor `torch`, `float32` and `tf32` are the same. For autocast see passes.py.
"""

import hashlib
import os
from dataclasses import dataclass, replace
from typing import Final

import torch

from indb_tensile.executor.capture.step_capture import CapturedStep


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatForms:
    """The operations that use TensorFloat-32."""

    convolutions: bool
    products: bool


_TORCH_DEFAULT: Final = FloatForms(convolutions=True, products=False)
FORMS: Final[dict[str, FloatForms]] = {
    "torch": _TORCH_DEFAULT,
    "float32": FloatForms(convolutions=False, products=False),
    "tf32": FloatForms(convolutions=True, products=True),
    "bfloat16": _TORCH_DEFAULT,  # for operations that stay in float32
}


def settle_precision(precision: str, place: torch.device) -> None:
    """Apply the precision to this process. On a processor this changes nothing."""
    if place.type == "cpu":
        return
    os.environ.pop("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", None)  # it would override the settings below
    forms = FORMS[precision]
    torch.backends.cudnn.allow_tf32 = forms.convolutions
    torch.backends.cuda.matmul.allow_tf32 = forms.products


def with_precision(step: CapturedStep, precision: str, place: torch.device) -> CapturedStep:
    """Return the step with signatures that include the precision.

    On a GPU the precision changes an operator's time and its bits. Signatures do not change for torch's default
    mixture, nor on a processor, which has only one form.
    """
    if place.type == "cpu" or FORMS[precision] == _TORCH_DEFAULT:
        return step
    graph = step.graph
    return replace(
        step,
        graph=replace(
            graph,
            operators=tuple(replace(o, signature=_with_precision(o.signature, precision)) for o in graph.operators),
            signature=_with_precision(graph.signature, precision),
        ),
        steps=tuple(
            replace(run, kernel=replace(run.kernel, signature=_with_precision(run.kernel.signature, precision)))
            for run in step.steps
        ),
    )


def _with_precision(signature: str, precision: str) -> str:
    return hashlib.sha256(f"{signature}/{precision}".encode()).hexdigest()
