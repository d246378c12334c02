"""The rules of registered networks: which networks an administrator may register, and how a training may use one.

A network's family is the `model_type` of its configuration. Of a configuration only the keys below are read, each
checked: everything else of config.json, such as names of classes, has no effect.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..errors import RequestError
from .abbreviation import shown
from .parameter_rules import Json, Rule, check_parameters, describe_rule, fill_defaults, fits

TRAINED_PARTS = ("head", "lora", "all")
POOLINGS = ("mean", "first", "last")
MOST_VOCABULARY = 1_000_000
MOST_POSITIONS = 8192
# Keys that would make transformers run code of the directory, or weights that are no plain numbers.
_WITH_CODE = ("auto_map", "custom_pipelines", "trust_remote_code")
_COMPRESSED = ("quantization_config", "compression_config")
_DECODING = ("is_decoder", "add_cross_attention", "is_encoder_decoder")

_SIZE: Rule = {"type": "integer", "minimum": 1, "maximum": 65536}
_COUNT: Rule = {"type": "integer", "minimum": 1, "maximum": 1024}
_DROPPED: Rule = {"type": "number", "minimum": 0, "below": 1, "default": 0.1}
_VOCABULARY: Rule = {"type": "integer", "minimum": 1, "maximum": MOST_VOCABULARY}
_POSITIONS: Rule = {"type": "integer", "minimum": 8, "maximum": MOST_POSITIONS, "default": 512}
_EPSILON: Rule = {"type": "number", "above": 0, "below": 1}
_ACTIVATION: Rule = {
    "type": "choice",
    "values": ["gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "relu", "silu", "swish", "tanh"],
    "default": "gelu",
}
_FLAG: Rule = {"type": "boolean", "default": False}
_PADDING: Rule = {"type": "integer", "minimum": 0, "maximum": MOST_VOCABULARY, "default": 0}


class NetworkFamily(NamedTuple):
    """A kind of network: the keys of its configuration, and where the sizes stand among them.

    `lora` are the layers that LoRA changes by default, and `layers` all that it can change. `offset` says whether
    positions begin behind the number of padding, as in RoBERTa. `causal` says whether a token attends to earlier
    tokens only. `prefixes` begin the names of tensors in files of networks with a head.
    """

    keys: Mapping[str, Rule]
    width: str
    depth: str
    heads: str
    positions: str
    lora: tuple[str, ...]
    layers: tuple[str, ...]
    prefixes: tuple[str, ...]
    offset: bool = False
    causal: bool = False


_BERT: dict[str, Rule] = {
    "vocab_size": _VOCABULARY,
    "hidden_size": _SIZE,
    "num_hidden_layers": _COUNT,
    "num_attention_heads": _COUNT,
    "intermediate_size": _SIZE,
    "hidden_act": _ACTIVATION,
    "hidden_dropout_prob": _DROPPED,
    "attention_probs_dropout_prob": _DROPPED,
    "max_position_embeddings": _POSITIONS,
    "type_vocab_size": _COUNT | {"default": 2},
    "layer_norm_eps": _EPSILON | {"default": 1e-12},
    "pad_token_id": _PADDING,
}
_DISTILBERT: dict[str, Rule] = {
    "vocab_size": _VOCABULARY,
    "dim": _SIZE,
    "n_layers": _COUNT,
    "n_heads": _COUNT,
    "hidden_dim": _SIZE,
    "activation": _ACTIVATION,
    "dropout": _DROPPED,
    "attention_dropout": _DROPPED,
    "max_position_embeddings": _POSITIONS,
    "pad_token_id": _PADDING,
}
_GPT2: dict[str, Rule] = {
    "vocab_size": _VOCABULARY,
    "n_embd": _SIZE,
    "n_layer": _COUNT,
    "n_head": _COUNT,
    "n_inner": _SIZE | {"default": None},
    "activation_function": _ACTIVATION | {"default": "gelu_new"},
    "resid_pdrop": _DROPPED,
    "embd_pdrop": _DROPPED,
    "attn_pdrop": _DROPPED,
    "n_positions": _POSITIONS | {"default": 1024},
    "layer_norm_epsilon": _EPSILON | {"default": 1e-5},
    "scale_attn_weights": _FLAG | {"default": True},
    "scale_attn_by_inverse_layer_idx": _FLAG,
}
_ATTENTION = ("query", "key", "value", "dense")
FAMILIES: dict[str, NetworkFamily] = {
    "bert": NetworkFamily(
        keys=_BERT,
        width="hidden_size",
        depth="num_hidden_layers",
        heads="num_attention_heads",
        positions="max_position_embeddings",
        lora=("query", "value"),
        layers=_ATTENTION,
        prefixes=("bert.",),
    ),
    "distilbert": NetworkFamily(
        keys=_DISTILBERT,
        width="dim",
        depth="n_layers",
        heads="n_heads",
        positions="max_position_embeddings",
        lora=("q_lin", "v_lin"),
        layers=("q_lin", "k_lin", "v_lin", "out_lin", "lin1", "lin2"),
        prefixes=("distilbert.",),
    ),
    "roberta": NetworkFamily(
        keys=_BERT | {"pad_token_id": _PADDING | {"default": 1}, "layer_norm_eps": _EPSILON | {"default": 1e-5}},
        width="hidden_size",
        depth="num_hidden_layers",
        heads="num_attention_heads",
        positions="max_position_embeddings",
        lora=("query", "value"),
        layers=_ATTENTION,
        prefixes=("roberta.",),
        offset=True,
    ),
    "gpt2": NetworkFamily(
        keys=_GPT2,
        width="n_embd",
        depth="n_layer",
        heads="n_head",
        positions="n_positions",
        lora=("c_attn",),
        layers=("c_attn", "c_proj", "c_fc"),
        prefixes=("transformer.",),
        causal=True,
    ),
}

LORA: dict[str, Rule] = {
    "r": {"type": "integer", "minimum": 1, "maximum": 1024, "default": 8},
    "alpha": {"type": "number", "above": 0, "maximum": 65536, "default": 16.0},
    "dropout": {"type": "number", "minimum": 0, "below": 1, "default": 0.0},
    "targets": {"type": "texts", "length": [1, 16], "default": None},
}
PRETRAINED: dict[str, Rule] = {
    "from": {"type": "text", "source": "It is a network of: select network from tensile.network_list;"},
    "train": {"type": "choice", "values": list(TRAINED_PARTS), "default": "head"},
    "lora": {"type": "object", "rules": LORA, "default": None},
    "pooling": {"type": "choice", "values": list(POOLINGS), "default": None},
    "digest": {"type": "text", "default": None},
}


def check_pretrained(checked: Json) -> None:
    """Raise RequestError for options of LoRA that are wrong, or that nothing reads. The names have been checked."""
    digest = checked.get("digest")
    if digest is not None and re.fullmatch("[0-9a-f]{64}", digest) is None:
        message = f'architecture pretrained: "digest" is {shown(digest)}'
        raise RequestError(message, hint="Leave it out, or copy it from tensile.network_list.")
    lora = checked.get("lora")
    if lora is None:
        return
    if checked.get("train", "head") != "lora":
        message = f'architecture pretrained: "lora" means nothing with train {checked.get("train", "head")}'
        raise RequestError(message, hint='Leave it out, or set "train" to lora.')
    check_parameters("architecture pretrained: lora", lora, LORA)


def lora_options(values: Mapping[str, Any]) -> Json:
    """Return the options of LoRA with their defaults, from the parameters of an architecture."""
    return fill_defaults(values.get("lora") or {}, LORA)


def lora_targets(family: str, values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the layers that LoRA changes. Raises RequestError for a layer that the family does not have."""
    known = FAMILIES[family]
    chosen = lora_options(values)["targets"]
    if chosen is None:
        return known.lora
    for name in chosen:
        if name not in known.layers:
            message = (
                f'architecture pretrained: lora: "targets" names {shown(name)}, and a {family} has no such layers'
            )
            raise RequestError(message, hint=f"Name some of {', '.join(known.layers)}.")
    return tuple(dict.fromkeys(chosen))


def read_config(config: Any) -> tuple[str, Json]:
    """Return the family of a network and its known sizes, from its config.json.

    Raises RequestError for a kind of network that is not known, for a configuration that names code, and for a value
    that is missing, of a wrong type or out of range.
    """
    if not isinstance(config, dict):
        raise RequestError("config.json is no JSON object", hint="Give the directory that save_pretrained wrote.")
    _refuse_keys(config)
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        message = f'config.json: "model_type" is {shown(family)}, which is no known kind of network'
        raise RequestError(message, hint=f"Networks of these kinds can be registered: {', '.join(FAMILIES)}.")
    known = FAMILIES[family].keys
    for name, rule in known.items():
        value = config.get(name)
        if value is None and "default" not in rule:
            raise RequestError(f'config.json: "{name}" is missing', hint=f"Give {describe_rule(rule)}.")
        if value is not None and not fits(value, rule):
            raise RequestError(f'config.json: "{name}" is {shown(value)}', hint=f"It must be {describe_rule(rule)}.")
    values = fill_defaults(config, known)
    _check_sizes(family, values)
    return family, values


def _refuse_keys(config: Json) -> None:
    for name in _WITH_CODE:
        if config.get(name):
            message = f'config.json has "{name}": the network needs code of its directory, which is never run'
            hint = f"Networks of these kinds can be registered, without such a key: {', '.join(FAMILIES)}."
            raise RequestError(message, hint=hint)
    for name in _COMPRESSED:
        if config.get(name):
            message = f'config.json has "{name}": the weights are compressed'
            raise RequestError(message, hint="Register weights of 16 or 32 bits.")
    for name in _DECODING:
        if config.get(name):
            message = f'config.json: "{name}" is true, and only encoders and the GPT-2 family can be registered'
            raise RequestError(message, hint="Register another network.")
    kind = config.get("position_embedding_type") or "absolute"
    if kind != "absolute":
        message = f'config.json: "position_embedding_type" is {shown(kind)}'
        raise RequestError(message, hint="Only absolute positions are known: register another network.")


def _check_sizes(family: str, values: Json) -> None:
    rules = FAMILIES[family]
    width, heads = values[rules.width], values[rules.heads]
    if width % heads:
        message = f'config.json: "{rules.width}" {width} cannot be split into {heads} heads ("{rules.heads}")'
        raise RequestError(message, hint="Give the directory that save_pretrained wrote.")
    if values.get("pad_token_id", 0) >= values["vocab_size"]:
        message = f'config.json: "pad_token_id" {values["pad_token_id"]} is none of {values["vocab_size"]} tokens'
        raise RequestError(message, hint="Give the directory that save_pretrained wrote.")
    if usable_positions(family, values) < 1:
        message = f'config.json: "{rules.positions}" {values[rules.positions]} leaves no position for a token'
        raise RequestError(message, hint="Give the directory that save_pretrained wrote.")


def usable_positions(family: str, values: Mapping[str, Any]) -> int:
    """Return how many tokens of a text the network reads at most."""
    rules = FAMILIES[family]
    return int(values[rules.positions]) - first_position(family, values)


def first_position(family: str, values: Mapping[str, Any]) -> int:
    """Return the number of a text's first position."""
    return int(values["pad_token_id"]) + 1 if FAMILIES[family].offset else 0


def stored_config(family: str, values: Json) -> Json:
    """Return what the catalog stores of a configuration: the sizes that views show, and all known values."""
    rules = FAMILIES[family]
    return {
        "width": values[rules.width],
        "layers": values[rules.depth],
        "positions": usable_positions(family, values),
        "vocabulary": values["vocab_size"],
        "values": values,
    }
