"""The options of a training: tables equal to those of `learning/`, which a test compares.

A worker checks a specification again, because a specification in the queue is untrusted input. In a rule, minimum and
maximum are inclusive, above and below are exclusive; a parameter without "default" is required. If the default is
None, the worker computes the value: batch_size, epochs and patience from the number of rows
(learning/training_length.py), the others from the optimizer. Without early_stop, training stops early unless epochs
is given or there are no validation rows; `{"on": false}` trains to the last epoch.
"""

from .spi import Json

_SHARE: Json = {"type": "number", "minimum": 0, "below": 1}
_FLAG: Json = {"type": "boolean", "default": False}
HYPERPARAMS: dict[str, Json] = {
    "epochs": {"type": "integer", "minimum": 1, "maximum": 100000, "default": None},
    "batch_size": {"type": "integer", "minimum": 1, "maximum": 1048576, "default": None},
    "micro_batch_size": {"type": "integer", "minimum": 1, "maximum": 1048576, "default": None},
    "precision": {"type": "choice", "values": ["torch", "float32", "tf32", "bfloat16"], "default": "torch"},
    "optimizer": {"type": "choice", "values": ["sgd", "adam", "adamw", "adagrad", "rmsprop"], "default": "adamw"},
    "learning_rate": {"type": "number", "above": 0, "maximum": 100, "default": None},
    "schedule": {"type": "choice", "values": ["constant", "cosine", "step"], "default": "cosine"},
    "warmup": _SHARE | {"default": 0.0},
    "decay": {"type": "number", "above": 0, "maximum": 1, "default": 0.1},
    "decay_at": {"type": "numbers", "above": 0, "below": 1, "length": [1, 16], "default": [0.5, 0.75]},
    "momentum": _SHARE | {"default": None},
    "nesterov": _FLAG,
    "betas": {"type": "numbers", "minimum": 0, "below": 1, "length": [2, 2], "default": [0.9, 0.999]},
    "alpha": _SHARE | {"default": 0.99},
    "centered": _FLAG,
    "eps": {"type": "number", "above": 0, "maximum": 1, "default": None},
    "weight_decay": {"type": "number", "minimum": 0, "maximum": 100, "default": None},
    "clip_norm": {"type": "number", "above": 0, "default": None},
    "average_decay": {"type": "number", "above": 0, "below": 1, "default": None},
    "seed": {"type": "integer", "minimum": 0, "maximum": 2147483647, "default": 0},
}
_DROPOUT: Json = _SHARE | {"default": 0.0}
_ACTIVATIONS = ("relu", "gelu", "tanh", "sigmoid", "silu")
_ACTIVATION: Json = {"type": "choice", "values": list(_ACTIVATIONS), "default": "relu"}
_WIDTHS: Json = {"type": "integers", "minimum": 1, "maximum": 65536, "length": [0, 64]}
_INPUT_SHAPE: Json = _WIDTHS | {"length": [1, 3], "default": None}
ARCHITECTURES: dict[str, dict[str, Json]] = {
    "auto": {"input_shape": _INPUT_SHAPE},
    "mlp": {
        "hidden": _WIDTHS | {"default": [128, 64]},
        "activation": _ACTIVATION,
        "dropout": _DROPOUT,
        "batch_norm": _FLAG,
        "input_shape": _INPUT_SHAPE,
    },
    "cnn": {
        "channels": _WIDTHS | {"length": [1, 32], "default": [32, 64]},
        "kernel": {"type": "integer", "minimum": 1, "maximum": 31, "default": 3},
        "depth": {"type": "integer", "minimum": 1, "maximum": 16, "default": 1},
        "hidden": _WIDTHS | {"default": [128]},
        "activation": _ACTIVATION,
        "dropout": _DROPOUT,
        "batch_norm": {"type": "boolean", "default": True},
        "input_shape": _INPUT_SHAPE,
    },
    "layers": {"layers": {"type": "layers"}, "input_shape": _INPUT_SHAPE},
}
MOST_PARAMETERS = 2_000_000_000
MOST_LAYERS = 500
DEEPEST_LAYERS = 8
_UNITS: Json = {"type": "integer", "minimum": 1, "maximum": 65536}
_KERNEL: Json = {"type": "integer", "minimum": 1, "maximum": 63}
_PADDING: Json = {"type": "integer", "minimum": 0, "maximum": 31}
_DEPTH: Json = {"type": "integer", "minimum": 1, "maximum": 64, "default": 1}
_OUTPUT: Json = {"type": "choice", "values": ["last", "mean", "sequence"], "default": "last"}
_POOL: dict[str, Json] = {
    "kernel": _KERNEL | {"default": 2},
    "stride": _KERNEL | {"default": None},
    "padding": _PADDING | {"default": 0},
}
_RECURRENT: dict[str, Json] = {
    "hidden": _UNITS,
    "layers": _DEPTH,
    "bidirectional": _FLAG,
    "dropout": _DROPOUT,
    "output": _OUTPUT,
}
LAYERS: dict[str, dict[str, Json]] = {
    "linear": {"out": _UNITS | {"default": None}, "bias": {"type": "boolean", "default": True}},
    "conv2d": {
        "out": _UNITS,
        "kernel": _KERNEL | {"default": 3},
        "stride": _KERNEL | {"default": 1},
        "padding": _PADDING | {"default": None},
        "groups": _UNITS | {"default": 1},
        "bias": {"type": "boolean", "default": True},
    },
    "batch_norm1d": {},
    "batch_norm2d": {},
    "layer_norm": {},
    **{name: {} for name in _ACTIVATIONS},
    "dropout": {"p": _DROPOUT | {"default": 0.5}},
    "max_pool2d": _POOL,
    "avg_pool2d": _POOL,
    "adaptive_avg_pool2d": {"size": _KERNEL | {"default": 1}},
    "flatten": {},
    "reshape": {"shape": {"type": "integers", "minimum": -1, "maximum": 2147483647, "length": [1, 4]}},
    "lstm": _RECURRENT,
    "gru": _RECURRENT,
    "transformer_encoder": {
        "d_model": _UNITS | {"default": None},
        "heads": {"type": "integer", "minimum": 1, "maximum": 256, "default": 4},
        "layers": _DEPTH | {"default": 2},
        "feedforward": _UNITS | {"default": None},
        "dropout": _DROPOUT | {"default": 0.1},
        "positions": {"type": "boolean", "default": True},
        "output": _OUTPUT | {"default": "mean"},
    },
    "residual": {"layers": {"type": "layers"}},
}
SPLIT: dict[str, Json] = {
    "test_size": {"type": "number", "above": 0, "below": 1, "default": 0.15},
    "valid_size": _SHARE | {"default": 0.15},
    "seed": {"type": "integer", "minimum": 0, "maximum": 2147483647, "default": 0},
    "last": {"type": "number", "above": 0, "below": 1, "default": None},
    "by": {"type": "text", "default": None},
    "column": {"type": "text", "default": None},
}
EARLY_STOP: dict[str, Json] = {
    "on": {"type": "boolean", "default": True},
    "patience": {"type": "integer", "minimum": 1, "maximum": 100000, "default": None},
    "min_delta": {"type": "number", "minimum": 0, "default": 0.0},
    "metric": {"type": "text", "default": "loss"},
}
# Parameters that have an effect only if another parameter has one of these values. Otherwise they are refused.
ONLY_WITH = {
    "momentum": ("optimizer", ("sgd", "rmsprop")),
    "nesterov": ("optimizer", ("sgd",)),
    "betas": ("optimizer", ("adam", "adamw")),
    "alpha": ("optimizer", ("rmsprop",)),
    "centered": ("optimizer", ("rmsprop",)),
    "eps": ("optimizer", ("adam", "adamw", "adagrad", "rmsprop")),
    "decay": ("schedule", ("step",)),
    "decay_at": ("schedule", ("step",)),
}
METRICS: dict[str, tuple[str, ...]] = {
    "classification": ("accuracy", "balanced_accuracy", "f1_macro", "log_loss", "roc_auc"),
    "regression": ("r2", "rmse", "mae"),
}
PREPROCESS: dict[str, Json] = {
    "standardize": {"type": "boolean", "default": True, "kinds": ["integer", "float", "array"]},
    "categories": {"type": "integer", "minimum": 1, "maximum": 10000, "default": 32, "kinds": ["text"]},
    "missing": {
        "type": "rule",
        "values": ["mean", "median", "zero", "indicator", "error"],
        "default": "mean",
        "kinds": ["integer", "float", "boolean", "text", "date", "time", "array"],
    },
}
_TIME_RULES = ("mean", "indicator", "error")
RULES: dict[str, tuple[str, ...]] = {"text": ("error",), "date": _TIME_RULES, "time": _TIME_RULES}
DEPLOY = ("if_better", "always", "never")
