"""Declares the operators without which torchvision cannot be imported beside another build of torch.

timm imports torchvision, and transformers does wherever torchvision is installed. A torchvision built for CUDA has a
library of C++ operators that does not load beside a torch without CUDA. The import names two of these operators and
fails if they do not exist. Both are box operators of detection models, which nothing of ours calls.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

_OPERATORS = ("nms", "qnms")
_declared: Any = None  # keeps the library object alive, on which the declarations depend


def declare_missing_operators() -> None:
    """Declare torchvision's operators if torchvision is installed and its library does not load.

    Where the library loads, the operators exist, and a second declaration would end the process. A second call does
    nothing.
    """
    global _declared
    spec = find_spec("torchvision")
    if _declared is not None or spec is None or spec.origin is None:
        return
    try:
        torch.ops.load_library(Path(spec.origin).with_name("_C.so"))  # type: ignore[no-untyped-call]
    except OSError:
        library: Any = torch.library.Library
        _declared = library("torchvision", "FRAGMENT")
        for name in _OPERATORS:
            _declared.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
