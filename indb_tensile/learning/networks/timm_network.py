"""A network of the library timm for images, chosen by its name, without pretrained weights.

timm and torchvision, which timm imports, are an extra of the package. They are imported where a network is built: no
other network needs them, and the import takes seconds. Nothing is downloaded and no file is read: a name that timm's
own list has is built from timm's code, with `pretrained=False`.
"""

import os
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor, nn

from indb_tensile.errors import RequestError, UnsupportedError
from indb_tensile.learning.networks.torchvision_operators import declare_missing_operators
from indb_tensile.request.near_names import did_you_mean

_INSTALL = "pip install 'indb-tensile[timm]'"
# What a network of a library may raise for a size or an option that it does not take.
_FAULTS = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError, ArithmeticError)
_CHOICES = (
    "drop_rate",
    "drop_path_rate",
)  # not given to the network unless requested, since not all networks take both


class TimmNetwork(nn.Module):
    """A network of timm for images of one shape.

    `values` are the parameters of the architecture, `shape` is channels, height and width. Raises UnsupportedError
    without timm and for another version of timm than the stored one, and RequestError for an unknown name and for a
    network that does not take these images.
    """

    def __init__(self, values: Mapping[str, Any], shape: Sequence[int], outputs: int) -> None:
        super().__init__()
        _require_version(values["library_version"])
        self._name, self._shape = values["name"], tuple(shape)
        self._options = {option: values[option] for option in _CHOICES if values[option] is not None}
        self._options |= {"in_chans": shape[0], "num_classes": outputs} | _size_option(self._name, shape)
        self.network = self._create()
        self._check_patches()
        self._check_outputs(outputs)

    def draw_weights(self) -> None:
        """Build the network anew with first weights, which timm draws by torch's generator, on the processor."""
        with torch.device("cpu"):
            self.network = self._create().train(self.training)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, channels, height, width) to (batch, outputs)."""
        return cast(Tensor, self.network(x))

    def _create(self) -> nn.Module:
        try:
            return cast(nn.Module, _timm().create_model(self._name, pretrained=False, **self._options))
        except _FAULTS as error:
            option = next((own for own in _CHOICES if own in self._options and f"'{own}'" in str(error)), None)
            if isinstance(error, TypeError) and option is not None:
                message = f'architecture timm: network "{self._name}" has no "{option}"'
                raise RequestError(message, hint=f'Leave "{option}" out.') from error
            raise self._misfit(error) from error

    def _check_patches(self) -> None:
        """Raise RequestError if the network's patches leave a part of the images out."""
        patch = getattr(getattr(self.network, "patch_embed", None), "patch_size", None)
        if not isinstance(patch, tuple):
            return
        height, width = self._shape[1:]
        if height % patch[0] or width % patch[1]:
            size = [-(-height // patch[0]) * patch[0], -(-width // patch[1]) * patch[1]]
            raise RequestError(
                f'architecture timm: network "{self._name}" reads patches of {patch[0]} x {patch[1]} pixels, and '
                f"the images have {height} x {width}",
                hint=f"Let them be resized: preprocess => '{{\"size\": {size}}}'.",
            )

    def _check_outputs(self, outputs: int) -> None:
        """Raise RequestError if the network does not map two images to two rows of outputs."""
        try:
            with torch.no_grad():
                result = self.network.to("meta").eval()(torch.empty(2, *self._shape, device="meta"))
        except _FAULTS as error:
            raise self._misfit(error) from error
        self.network.train()
        shape = tuple(result.shape) if isinstance(result, Tensor) else None
        if shape != (2, outputs):
            outcome = f"gives {list(shape[1:])} per row" if shape else "gives no tensor"
            raise RequestError(
                f'architecture timm: network "{self._name}" {outcome}, the task needs {[outputs]}',
                hint="Choose a network that classifies images, such as resnet18.",
            )

    def _misfit(self, error: Exception) -> RequestError:
        channels, height, width = self._shape
        reason = ": ".join(filter(None, (type(error).__name__, str(error).partition("\n")[0])))
        own = _timm().get_pretrained_cfg(self._name).input_size[1:]
        return RequestError(
            f'architecture timm: network "{self._name}" does not take images of {height} x {width} with '
            f"{channels} channel{'' if channels == 1 else 's'}",
            detail=f"{reason}.",
            hint=f"Its own size is {own[0]} x {own[1]}: preprocess => '{{\"size\": [{own[0]}, {own[1]}]}}'. "
            "Networks of convolutions, such as resnet18, take most sizes.",
        )


def library_version() -> str:
    """Return the version of timm. Raises UnsupportedError if it is not installed."""
    return str(_timm().__version__)


def _size_option(name: str, shape: Sequence[int]) -> dict[str, Any]:
    """Return the size that a network must be built for, if its layers depend on the size. Refuses unknown names."""
    timm = _timm()
    if not timm.is_model(name):
        raise RequestError(
            f'architecture timm: timm {timm.__version__} has no network "{name}"',
            hint=f"{did_you_mean(name, timm.list_models())}Its networks: python -c 'import timm; "
            "print(timm.list_models())'.",
        )
    config = timm.get_pretrained_cfg(name)
    return {"img_size": tuple(shape[1:])} if config is not None and config.fixed_input_size else {}


def _require_version(stored: str | None) -> None:
    """Raise UnsupportedError if a version of a model was trained with another timm, which may compute otherwise."""
    if stored is not None and stored != library_version():
        raise UnsupportedError(
            f"the network was trained with timm {stored}, and timm {library_version()} is installed here",
            detail="Another version of timm may build another network of the same name.",
            hint=f"Train again, or on this machine: pip install --no-deps timm=={stored}",
        )


def _timm() -> ModuleType:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing of ours downloads, and nothing that it calls should
    try:
        declare_missing_operators()
        import timm
    except ImportError as error:
        raise UnsupportedError(
            f"architecture timm needs the package {error.name or 'timm'}, which is not installed here",
            detail=f"{type(error).__name__}: {error}",
            hint=f"On the machines of controllers and services: {_INSTALL}",
        ) from error
    return cast(ModuleType, timm)
