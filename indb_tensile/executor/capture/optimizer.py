"""The optimizers that a captured step can contain, and the state that each stores for a parameter."""

import math
from dataclasses import dataclass

from indb_tensile.errors import RequestError

_STATES = {
    "sgd": (),
    "adam": ("exp_avg", "exp_avg_sq"),
    "adamw": ("exp_avg", "exp_avg_sq"),
    "adagrad": ("sum",),
    "rmsprop": ("square_avg",),
    "lion": ("exp_avg",),
}
AVERAGE = "average"  # the state that is the moving average of a parameter

# Settings without a meaning for other optimizers. For those, any value but the default is an error.
_ONLY_WITH = {
    "momentum": ("sgd", "rmsprop"),
    "nesterov": ("sgd",),
    "betas": ("adam", "adamw", "lion"),
    "alpha": ("rmsprop",),
    "centered": ("rmsprop",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """One optimizer and all its settings that stay constant while a job runs.

    The learning rate is not among them: it is a run-time input of the step, so a schedule needs no new capture.
    `momentum` belongs to sgd and rmsprop, `nesterov` to sgd, `betas` to adam, adamw and lion, `alpha` and `centered`
    to rmsprop, `eps` to all but sgd and lion. The weight decay of adamw and lion is decoupled. Without `decays_all`,
    biases, scales and other parameters of one dimension have no weight decay. `clip_norm` scales all gradients
    together so that their norm does not exceed the value, as `torch.nn.utils.clip_grad_norm_` does. With
    `average_decay` every parameter has a moving average, which evaluation steps use in place of the parameter, like
    `torch.optim.swa_utils.AveragedModel` with `get_ema_multi_avg_fn`.

    Raises RequestError for values out of range, and for settings without a meaning for this optimizer.
    """

    kind: str = "adam"
    momentum: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    decays_all: bool = True
    nesterov: bool = False
    centered: bool = False
    clip_norm: float | None = None
    average_decay: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in _STATES:
            raise RequestError(f"optimizer {self.kind!r} is unknown", hint=f"Use one of {', '.join(_STATES)}.")
        for name, kinds in _ONLY_WITH.items():
            value = getattr(self, name)
            if self.kind not in kinds and value != type(self).__dataclass_fields__[name].default:
                hint = f"Leave {name} out, or use {' or '.join(kinds)}."
                raise RequestError(f"{name} {value} means nothing with optimizer {self.kind}", hint=hint)
        shares = {"momentum": self.momentum, "alpha": self.alpha, "average_decay": self.average_decay}
        shares |= {f"betas[{index}]": beta for index, beta in enumerate(self.betas)}
        for name, share in shares.items():
            if share is not None and not 0.0 <= share < 1.0:
                raise RequestError(f"{name} {share} is outside [0, 1)", hint="Give a number from 0, below 1.")
        for name in ("eps", "weight_decay"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise RequestError(
                    f"{name} {value} is not a finite number of at least 0", hint="Give a number, at least 0."
                )
        if self.nesterov and self.momentum == 0.0:
            raise RequestError("nesterov needs a momentum", hint="Set momentum, or leave nesterov out.")
        if self.clip_norm is not None and not self.clip_norm > 0.0:
            raise RequestError(f"clip_norm {self.clip_norm} is not positive", hint="Give a number above 0, or None.")

    @property
    def states(self) -> tuple[str, ...]:
        """The names of the state tensors of each parameter. Each has the parameter's shape."""
        names = _STATES[self.kind]
        names += ("grad_avg",) if self.centered else ()
        names += ("momentum_buffer",) if self.momentum else ()
        return names if self.average_decay is None else (*names, AVERAGE)

    def decay_of(self, parameter: str, dimensions: int) -> float:
        """Return the weight decay of the parameter of this name."""
        part = parameter.rpartition(".")[2]
        is_weight = dimensions > 1 and not part.startswith("bias") and not part.endswith("scale")
        return self.weight_decay if self.decays_all or is_weight else 0.0

    @property
    def counts_steps(self) -> bool:
        """True if the optimizer has a step counter. All parameters share the counter."""
        return self.kind in ("adam", "adamw", "adagrad")


def state_name(state: str, parameter: str) -> str:
    """Return the name of a parameter's state tensor. No module path has this form."""
    return f"optimizer/{state}/{parameter}"
