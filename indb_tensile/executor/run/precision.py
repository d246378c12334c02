"""In which form of float32 a GPU computes products and convolutions, and how that is part of what is remembered.

TensorFloat-32 keeps float32's range and 10 bits of its fraction; a GPU of capability 8.0 or later computes several
times faster in it. Torch uses it for convolutions and not for products unless told otherwise (PyTorch, CUDA
semantics: TensorFloat-32), and so does `torch` here. Exactness needs equal settings on both sides of a comparison,
whichever they are. On the processor `torch`, `float32` and `tf32` are one and the same. What autocast casts is
elsewhere (passes.py).
"""

import hashlib
import os
from dataclasses import dataclass, replace
from typing import Final

import torch

from indb_tensile.executor.capture.capture import CapturedStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Forms:
    """Which operations use TensorFloat-32."""

    convolutions: bool
    products: bool


_TORCHS_OWN: Final = Forms(convolutions=True, products=False)
FORMS: Final[dict[str, Forms]] = {
    "torch": _TORCHS_OWN,
    "float32": Forms(convolutions=False, products=False),
    "tf32": Forms(convolutions=True, products=True),
    "bfloat16": _TORCHS_OWN,  # of what stays in float32
}


def settle_precision(precision: str, place: torch.device) -> None:
    """Apply the precision to this process. On a processor this changes nothing."""
    if place.type == "cpu":
        return
    os.environ.pop("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", None)  # it would hold against what is set here
    forms = FORMS[precision]
    torch.backends.cudnn.allow_tf32 = forms.convolutions
    torch.backends.cuda.matmul.allow_tf32 = forms.products


def keyed(step: CapturedStep, precision: str, place: torch.device) -> CapturedStep:
    """The step with signatures that name how a GPU computes it: it takes another time, and gives other bits.

    Torch's own mixture is not named, nor is anything on the processor, where there is only one form.
    """
    if place.type == "cpu" or FORMS[precision] == _TORCHS_OWN:
        return step
    graph = step.graph
    return replace(
        step,
        graph=replace(
            graph,
            operators=tuple(replace(o, signature=_named(o.signature, precision)) for o in graph.operators),
            signature=_named(graph.signature, precision),
        ),
        steps=tuple(
            replace(one, kernel=replace(one.kernel, signature=_named(one.kernel.signature, precision)))
            for one in step.steps
        ),
    )


def _named(signature: str, precision: str) -> str:
    return hashlib.sha256(f"{signature}/{precision}".encode()).hexdigest()
