"""The optimizers a captured step can contain, and the state each keeps beside a parameter."""

from dataclasses import dataclass

from indb_tensile.errors import RequestError

_STATES = {"sgd": (), "adam": ("exp_avg", "exp_avg_sq"), "adamw": ("exp_avg", "exp_avg_sq")}


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """One optimizer and everything about it that does not change while a job runs.

    The learning rate is not here: it is a run-time input of the step, so a schedule needs no new capture.
    `momentum` and `nesterov` belong to sgd, `betas` and `eps` to adam and adamw. `clip_norm` scales all
    gradients together so that their norm does not exceed it, as `torch.nn.utils.clip_grad_norm_` does.

    Raises RequestError for what is out of range.
    """

    kind: str = "adam"
    momentum: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    nesterov: bool = False
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in _STATES:
            raise RequestError(f"optimizer {self.kind!r} is unknown", hint=f"Use one of {', '.join(_STATES)}.")
        if not 0.0 <= self.momentum < 1.0 or not all(0.0 <= beta < 1.0 for beta in self.betas):
            raise RequestError(f"momentum {self.momentum} or betas {self.betas} are outside [0, 1)")
        if self.eps < 0.0 or self.weight_decay < 0.0:
            raise RequestError(f"eps {self.eps} or weight_decay {self.weight_decay} is negative")
        if self.nesterov and self.momentum == 0.0:
            raise RequestError("nesterov needs a momentum", hint="Set momentum, or leave nesterov out.")
        if self.clip_norm is not None and not self.clip_norm > 0.0:
            raise RequestError(f"clip_norm {self.clip_norm} is not positive")

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the tensors kept per parameter, each of the parameter's shape."""
        if self.kind == "sgd":
            return ("momentum_buffer",) if self.momentum else ()
        return _STATES[self.kind]

    @property
    def counts_steps(self) -> bool:
        """Keeps one step counter, shared by all parameters."""
        return self.kind != "sgd"
