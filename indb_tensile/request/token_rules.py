"""Decides which networks read texts as tokens, and which options of `preprocess` need such a network."""

from collections.abc import Mapping
from typing import Any

from ..errors import RequestError
from .network_rules import EMBEDDING_ARCHITECTURES
from .parameter_rules import Json

TOKENS = "tokens"


def names_tokens(preprocess: Json) -> bool:
    """Return whether the options ask for tokens of a column."""
    encode = preprocess.get("encode")
    return TOKENS in _encodings(encode)


def check_tokens(architecture: Json, preprocess: Json) -> None:
    """Raise RequestError for tokens that the network does not read, and for options of tokens of another column.

    Both arguments have been checked.
    """
    kind = architecture["type"]
    if names_tokens(preprocess) and kind not in ("auto", *EMBEDDING_ARCHITECTURES):
        raise RequestError(
            f'preprocess: "encode" is tokens, which architecture {kind} does not read',
            hint=f"Give one of auto, {', '.join(EMBEDDING_ARCHITECTURES)}, or another encoding.",
        )
    if architecture.get("input_shape") is not None and names_tokens(preprocess):
        raise RequestError(
            'preprocess: "encode" is tokens, and architecture auto has an "input_shape"',
            hint='Leave "input_shape" out.',
        )
    if kind == "pretrained" and "vocabulary" in preprocess:
        raise RequestError(
            'preprocess: "vocabulary" means nothing with architecture pretrained',
            hint="Leave it out: the registered network has its own tokens.",
        )
    for option in ("vocabulary", "length"):
        _check_option(option, preprocess)


def check_length_buckets(spec: Mapping[str, Any]) -> None:
    """Raise RequestError for buckets of lengths where no text is read as tokens, or pairs are compared.

    `spec` has been checked. Whether a training that goes on from another version reads tokens shows when it begins.
    """
    most = spec["hyperparams"].get("length_buckets")
    if most in (None, 1):
        return
    if spec["task"] == "pairs":
        raise RequestError(
            f'hyperparams: "length_buckets" is {most}, and each pair is compared with the others of its batch',
            detail="Items of one length would be compared with each other alone.",
            hint='Leave "length_buckets" out.',
        )
    read = names_tokens(spec["preprocess"]) or spec["architecture"]["type"] == "pretrained"
    if not read and spec.get("init_from") is None:
        raise RequestError(
            f'hyperparams: "length_buckets" is {most}, and no column is read as tokens',
            hint='Read a column as tokens, preprocess => \'{"encode": {"body": "tokens"}}\', or leave it out.',
        )


def reads_in_lengths(spec: Mapping[str, Any], kind: str, name: str) -> bool:
    """Return whether a training reads this column as tokens in batches of several lengths. `spec` is checked."""
    if kind != "text" or spec["hyperparams"].get("length_buckets") in (None, 1):
        return False
    encode = spec["preprocess"].get("encode")
    return bool((encode.get(name) if isinstance(encode, dict) else encode) == TOKENS)


def _check_option(option: str, preprocess: Json) -> None:
    """Raise RequestError for an option of tokens of which there are none."""
    if option not in preprocess:
        return
    value, encode = preprocess[option], preprocess.get("encode")
    columns = value if isinstance(value, dict) else {None: value}
    for name in columns:
        own = encode.get(name) if name is not None and isinstance(encode, dict) else encode
        if TOKENS not in _encodings(own):
            of_column = "" if name is None else f' of column "{name}"'
            message = f'preprocess: "{option}"{of_column} means nothing without tokens'
            column = "description" if name is None else name
            raise RequestError(message, hint=f'Add "encode": {{"{column}": "tokens"}}, or leave it out.')


def _encodings(encode: Any) -> list[Any]:
    return list(encode.values()) if isinstance(encode, dict) else [encode]
