"""Finds the known name that an unknown one most likely stands for, for the hint of a refusal."""

from collections.abc import Iterable

_LONGEST_NAME = 100  # characters that are compared: a request may have a name of any length
_LEAST_SIMILARITY = 0.7  # of difflib; with its default of 0.6, "perceptron" is near "pretrained"


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return a question with the nearest known name, and a space behind it; or an empty text if none is near."""
    near = near_name(name, known)
    return f'Did you mean "{near}"? ' if near else ""


def near_name(name: object, known: Iterable[str]) -> str | None:
    """Return the known name that is spelled most like `name`, or None.

    Initials and the first word stand for the whole name, and so do its letters in another order. Case makes no
    difference, and neither does whether words are joined by a hyphen, a space or an underscore.
    """
    from difflib import get_close_matches  # imported here since a session that makes no mistake does not need it

    if not isinstance(name, str):
        return None
    plain = {_plain(own): own for own in reversed(list(known))}  # of names that are alike in this, the first one
    spelled = _plain(name)[:_LONGEST_NAME]
    if spelled in plain:
        return plain[spelled]
    short = [own for text, own in plain.items() if spelled in (_initials(text), text.partition("_")[0])]
    if short and len(spelled) > 1:
        return short[-1]
    swapped = [own for text, own in plain.items() if sorted(text) == sorted(spelled)]
    if swapped:  # difflib finds "mpl" less similar to "mlp" than the least similarity
        return swapped[-1]
    nearest = get_close_matches(spelled, plain, n=1, cutoff=_LEAST_SIMILARITY)
    return plain[nearest[0]] if nearest else None


def _plain(name: str) -> str:
    return name.lower().replace("-", "_").replace(" ", "_")


def _initials(plain: str) -> str:
    return "".join(word[:1] for word in plain.split("_"))
