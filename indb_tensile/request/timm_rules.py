"""Decides by which name a request may choose a network of the library timm, and with which parameters.

A name is one of timm's own list. timm also accepts addresses of repositories and of directories, from which it would
load a configuration and weights, and names with a tag, which stands for weights: all of these are refused.
"""

import re

from ..errors import RequestError
from .abbreviation import shown
from .parameter_rules import Json, Rule

_SHARE: Rule = {"type": "number", "minimum": 0, "below": 1, "default": None}
TIMM: dict[str, Rule] = {
    "name": {"type": "text"},
    "drop_rate": _SHARE,
    "drop_path_rate": _SHARE,
    "library_version": {"type": "text", "default": None},
}
_NAME = re.compile("[a-z][a-z0-9_]{0,99}")
_VERSION = re.compile("[0-9]+(\\.[0-9a-z]+){1,5}")


def check_timm(checked: Json) -> None:
    """Raise RequestError for a name or a version of a wrong form. The names of the parameters have been checked."""
    name, version = checked["name"], checked.get("library_version")
    if _NAME.fullmatch(name) is None:
        raise RequestError(f'architecture timm: "name" is {shown(name)}', hint=_way_out(name))
    if version is not None and _VERSION.fullmatch(version) is None:
        message = f'architecture timm: "library_version" is {shown(version)}'
        raise RequestError(message, hint="Leave it out: it is stored with each version of the model.")


def _way_out(name: str) -> str:
    bare = name.partition(".")[0]
    if bare != name and _NAME.fullmatch(bare):
        return f'Give "{bare}": a tag behind a dot stands for weights, and the network is trained from its beginning.'
    return 'Give a name of timm in lower case, such as "resnet18" or "vit_tiny_patch16_224", and no address.'
