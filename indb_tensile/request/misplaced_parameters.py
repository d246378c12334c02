"""Refuses a parameter that stands in the wrong argument of a training, and names the right one."""

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import RequestError
from .abbreviation import shown
from .early_stop_rules import EARLY_STOP
from .forecast_rules import FORECAST
from .hyperparam_rules import HYPERPARAMS
from .network_rules import ARCHITECTURES, LAYOUT_PARAMETERS
from .preprocess_rules import PREPROCESS
from .split_rules import SPLIT

_ARCHITECTURE = "architecture"
# In the order in which a hint names them.
_NAMES: Mapping[str, Iterable[str]] = {
    "hyperparams": HYPERPARAMS,
    "early_stop": EARLY_STOP,
    _ARCHITECTURE: {name for rules in ARCHITECTURES.values() for name in rules} - {*LAYOUT_PARAMETERS},
    "split": SPLIT,
    "preprocess": PREPROCESS,
    "forecast": FORECAST,
}


def refuse_misplaced(argument: str, values: Any) -> None:
    """Raise RequestError for a parameter that this argument does not know and another one does.

    What no argument knows, and what is no object at all, is left to the check of the argument.
    """
    if not isinstance(values, dict):
        return
    subject, known = argument, _NAMES[argument]
    if argument == _ARCHITECTURE:
        kind = values.get("type")
        if not isinstance(kind, str) or kind not in ARCHITECTURES:
            return
        subject, known = f"{argument} {kind}", ("type", *ARCHITECTURES[kind])
    for name in values:
        places = [other for other, names in _NAMES.items() if other != argument and name in names]
        if name not in known and places:
            own = [parameter for parameter in known if parameter != "type"]
            message = f"{subject}: unknown parameter {shown(name)}"
            detail = f"Known parameters: {', '.join(own) or 'none'}."
            raise RequestError(message, detail=detail, hint=f"Give it in the argument {' or '.join(places)}.")
