"""The preprocessing of some features alone, such as those of one side of pairs."""

from collections.abc import Collection
from dataclasses import replace
from typing import Protocol, TypeVar

from indb_tensile.learning.encoding.encoders import Numbers
from indb_tensile.learning.encoding.preprocessor import Preprocessor, Recipe


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_Encoder = TypeVar("_Encoder", bound=_Named)


def of_features(preprocessor: Preprocessor, features: Collection[str]) -> Preprocessor:
    """Return the preprocessing of these features: rows become their numbers in the same order, and flat."""
    whole = preprocessor.recipe
    documents = tuple(path for path in whole.documents if path.column in features)
    names = {name for name in whole.features if name in features} | {path.name for path in documents}
    names -= {path.name for path in whole.documents if path.column not in features}

    def chosen(encoders: tuple[_Encoder, ...]) -> tuple[_Encoder, ...]:
        return tuple(own for own in encoders if own.name in names)

    recipe = Recipe(
        format=whole.format,
        features=tuple(name for name in whole.features if name in features),
        numbers=_numbers(whole.numbers, names),
        texts=chosen(whole.texts),
        times=chosen(whole.times),
        arrays=chosen(whole.arrays),
        target=whole.target,
        input_shape=(),
        ordinals=chosen(whole.ordinals),
        hashed=chosen(whole.hashed),
        target_means=chosen(whole.target_means),
        labels=chosen(whole.labels),
        documents=documents,
        fills={name: fill for name, fill in whole.fills.items() if name in names},
        codes=chosen(whole.codes),
        tokens=chosen(whole.tokens),
        network_tokens=chosen(whole.network_tokens),
        singles=tuple(name for name in whole.singles if name in names),
        images=chosen(whole.images),
    )
    width = len(Preprocessor(recipe).outputs)
    return Preprocessor(replace(recipe, input_shape=(width,)), tokenizer=preprocessor.tokenizer)


def _numbers(whole: Numbers, names: Collection[str]) -> Numbers:
    places = [place for place, name in enumerate(whole.names) if name in names]

    def moved(positions: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(new for new, place in enumerate(places) if place in positions)

    return Numbers(
        names=tuple(whole.names[place] for place in places),
        mean=tuple(whole.mean[place] for place in places),
        scale=tuple(whole.scale[place] for place in places),
        fill=tuple(whole.fill[place] for place in places),
        required=moved(whole.required),
        indicators=moved(whole.indicators),
        durations=moved(whole.durations),
        scalings={name: own for name, own in whole.scalings.items() if name in names},
    )
