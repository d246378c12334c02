"""The options of early stopping.

Without early_stop, training stops early unless epochs is given or there are no validation rows; `{"on": false}`
trains to the last epoch. The default of patience is a function of the epochs (learning/networks/training_length.py).
"""

from typing import Any

from ..errors import RequestError
from .abbreviation import shown
from .near_names import did_you_mean
from .parameter_rules import Json, Rule, check_parameters
from .task_rules import METRICS

EARLY_STOP: dict[str, Rule] = {
    "on": {"type": "boolean", "default": True},
    "patience": {"type": "integer", "minimum": 1, "maximum": 100000, "default": None},
    "min_delta": {"type": "number", "minimum": 0, "default": 0.0},
    "metric": {"type": "text", "default": "loss"},
}


def check_early_stop(early_stop: Any, task: str, split: Json) -> Json:
    """Return the options without nulls.

    Raises RequestError for an invalid option, a metric that the task lacks, an option beside `"on": false`, and a
    `split` without validation rows.
    """
    options = check_parameters("early_stop", early_stop, EARLY_STOP)
    off = options.get("on") is False
    others = [name for name in options if name != "on"]
    if off and others:
        hint = f'Leave "{others[0]}" out, or leave "on" out.'
        raise RequestError(f'early_stop: "{others[0]}" means nothing with "on" false', hint=hint)
    if not off and split.get("valid_size") == 0:
        message = "early_stop needs validation rows, and the split's valid_size is 0"
        hint = "Give a valid_size above 0, or switch it off: early_stop => '{\"on\": false}'."
        raise RequestError(message, hint=hint)
    known = ("loss", *METRICS[task])
    if options.get("metric", "loss") not in known:
        hint = f"{did_you_mean(options['metric'], known)}Known for {task}: {', '.join(known)}."
        raise RequestError(f"early_stop: unknown metric {shown(options['metric'])}", hint=hint)
    return options
