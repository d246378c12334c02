"""Starts a training from the weights of another version: which encoders are kept, and which weights fit the network.

Weights mean something only for the inputs that they were trained on. So a column that both versions have keeps the
encoder of the first one, with its means, scales and categories, unless the request has other preprocessing options
for that column. The target keeps its labels, or its mean and scale.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from indb_tensile.errors import RequestError
from indb_tensile.job import Task
from indb_tensile.learning.encoding.encoders import Arrays, Numbers, Times
from indb_tensile.learning.encoding.image_decoding import ImageForm
from indb_tensile.learning.encoding.image_encoders import Images
from indb_tensile.learning.encoding.preprocessor import Preprocessor, Recipe, TextEncoder
from indb_tensile.learning.encoding.target_vectors import merged_labels
from indb_tensile.learning.encoding.targets import TargetEncoding
from indb_tensile.learning.encoding.text_encoders import LabelSets, Ordinals
from indb_tensile.learning.models.artifacts import ModelBundle
from indb_tensile.learning.networks.architectures import stored_names
from indb_tensile.learning.networks.grown_weights import Growth, copy_to
from indb_tensile.request.feature_rules import learned_first

_Encoder = TypeVar("_Encoder", bound=TextEncoder | Times | Arrays | LabelSets | Images)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StartingWeights:
    """The version that a training starts from."""

    model: str
    version: int
    bundle: ModelBundle

    @property
    def title(self) -> str:
        """Name the version in a message."""
        return f'version {self.version} of model "{self.model}"'

    @property
    def architecture(self) -> dict[str, Any]:
        """Return the resolved architecture of the version."""
        return dict(self.bundle.architecture)

    @property
    def features(self) -> tuple[str, ...]:
        """Return the columns that the version learned from."""
        return self.bundle.preprocessor.recipe.features

    @property
    def image_forms(self) -> dict[str, ImageForm]:
        """Return the form of each column of images of the version."""
        return {image.name: image.form for image in self.bundle.preprocessor.recipe.images}

    def to_json(self) -> dict[str, Any]:
        """Return model and version as they are stored with the new version."""
        return {"model": self.model, "version": self.version}

    def in_order(self, features: Sequence[str]) -> tuple[str, ...]:
        """Return the features in the order of this version, and behind them those that it does not have.

        Raises RequestError if one of the version is absent.
        """
        return learned_first(self.title, self.features, features)

    def keep_target(self, fitted: TargetEncoding) -> TargetEncoding:
        """Return the target with the labels, or the mean and scale, of this version, if its values allow that.

        Labels that the version does not know are added to its own. If it knows none of the table's, those of the
        table count alone. Raises RequestError if the two versions have different tasks.
        """
        own = self.bundle.preprocessor.target
        if own.task is not fitted.task:
            raise RequestError(
                f"init_from: the task is {fitted.task}, and that of {self.title} is {own.task}",
                hint="Name a version of the same task, or leave init_from out.",
            )
        if own.kind is not fitted.kind or own.link is not fitted.link:
            return fitted
        if len(fitted.values) != len(own.values):
            return fitted
        if not set(fitted.labels) <= set(own.labels):
            return self._with_more_labels(fitted)
        if fitted.elements != own.elements:  # of columns with other names, or in another order
            return fitted
        return replace(own, name=fitted.name, columns=fitted.columns)

    def _with_more_labels(self, fitted: TargetEncoding) -> TargetEncoding:
        own = self.bundle.preprocessor.target
        shared = set(own.labels) & set(fitted.labels)
        if not shared or own.elements or fitted.elements or own.columns or fitted.columns:
            return fitted
        if own.task is Task.MULTILABEL:
            return replace(fitted, labels=merged_labels(own.names, fitted.names))
        return replace(fitted, labels=tuple(sorted({*own.labels, *fitted.labels})))

    def keep_encoders(self, fitted: Preprocessor, options: Mapping[str, Any]) -> Preprocessor:
        """Return the preprocessor with the encoders of this version for all columns that both have.

        `options` are those of the request; a column with options that differ gets the fitted encoder. The training
        rows keep the means of the target that `fitted` computed for them, because those of the version may be
        computed from the same rows.
        """
        old, new = self.bundle.preprocessor.recipe, fitted.recipe
        named = _with_other_options(old, new, options)
        recipe = replace(
            new,
            numbers=_keep_numbers(old.numbers, new.numbers, named),
            texts=_keep(old.texts, new.texts, named),
            times=_keep([part for part in old.times if _same_clock(part, new.times)], new.times, named),
            arrays=_keep([part for part in old.arrays if _same_shape(part, new.arrays)], new.arrays, named),
            ordinals=_keep(old.ordinals, new.ordinals, named),
            hashed=_keep(old.hashed, new.hashed, named),
            target_means=_keep(old.target_means, new.target_means, named)
            if _same_goal(old, new)
            else new.target_means,
            labels=_keep(old.labels, new.labels, named),
            codes=_keep(old.codes, new.codes, named),
            tokens=_keep(old.tokens, new.tokens, named),
            network_tokens=_keep(old.network_tokens, new.network_tokens, named),
            images=_keep_images(old.images, new.images, named),
        )
        recipe = replace(recipe, fills=_keep_fills(old, recipe))
        flat = new.input_shape == (len(fitted.outputs),)
        width = len(Preprocessor(recipe, tokenizer=fitted.tokenizer).outputs)
        recipe = replace(recipe, input_shape=(width,)) if flat else recipe
        return Preprocessor(
            recipe, fitted.text_facts, fitted.of_training, fitted.token_facts, tokenizer=fitted.tokenizer
        )

    def load_into(self, module: nn.Module, preprocessor: Preprocessor) -> None:
        """Copy the weights into a network of equal layers, which may have more inputs and classes (grown_weights.py).

        Layers are compared in their order and not by their names, because a dropout layer shifts the names. Raises
        RequestError that names the first layer that does not fit, with both shapes.
        """
        source = self.bundle.module()
        growth = Growth.between(module, preprocessor, source, self.bundle.preprocessor)
        kept = set(stored_names(module)) - growth.new_tensors
        own = {name: tensor for name, tensor in module.state_dict().items() if name in kept}
        stored = {name: self.bundle.weights[name] for name in source.state_dict() if name in self.bundle.weights}
        copies = []
        for (name, tensor), (old_name, old) in zip(own.items(), stored.items(), strict=False):
            if _kind(name) == _kind(old_name) == _OFFSETS:
                continue
            places = growth.places(tensor.shape, old.shape) if _kind(name) == _kind(old_name) else None
            if places is None:
                raise self._misfit(
                    f'layer "{name}" has shape {list(tensor.shape)}, and in {self.title} layer '
                    f'"{old_name}" has shape {list(old.shape)}',
                    own,
                    "Train on the same columns and classes, or on more of them, with the same architecture, or leave "
                    "init_from out.",
                )
            copies.append((tensor, places, old))
        if len(own) != len(stored):
            raise self._misfit(
                f"the network has {len(own)} tensors of weights, and {self.title} has {len(stored)}",
                own,
                "Leave architecture out, which takes over that of the version.",
            )
        with torch.no_grad():
            for tensor, places, old in copies:
                copy_to(tensor, places, old)

    def _misfit(self, fault: str, own: Mapping[str, Tensor], hint: str) -> RequestError:
        detail = f"The network is {module_words(own)}; that of the version is {module_words(self.bundle.weights)}."
        return RequestError(f"init_from: {fault}", detail=detail, hint=hint)


def module_words(tensors: Mapping[str, Tensor]) -> str:
    """List the names and shapes of tensors, shortened."""
    listed = [f"{name} {list(tensor.shape)}" for name, tensor in tensors.items() if tensor.dim()]
    return ", ".join(listed[:_MOST_LISTED]) + (
        f" and {len(listed) - _MOST_LISTED} more" if listed[_MOST_LISTED:] else ""
    )


_MOST_LISTED = 12
_OFFSETS = "offsets"  # of categories in their table: they follow from the columns, and are no weights


def _kind(name: str) -> str:
    return name.rpartition(".")[2]


def _same_shape(old: Arrays, parts: Sequence[Arrays]) -> bool:
    return any(part.name == old.name and part.shape == old.shape for part in parts)


def _same_clock(old: Times, parts: Sequence[Times]) -> bool:
    """Return whether the column has times of day in both versions, or in none."""
    return any(part.name == old.name and part.parts[0] == old.parts[0] for part in parts)


def _same_goal(old: Recipe, new: Recipe) -> bool:
    """Return whether means of the target have the same unit, or the same classes, in both."""
    return replace(old.target, name=new.target.name, columns=new.target.columns) == new.target


def _with_other_options(old: Recipe, new: Recipe, options: Mapping[str, Any]) -> set[str]:
    """Return the columns that the request gives options by name, unless the options are those of the version.

    These are the options that an encoder shows: how a text is encoded, which function scales a number, and the path
    of a document.
    """
    own = {option: set(value) if isinstance(value, dict) else set() for option, value in options.items()}
    own["encode"] = {name for name in own.get("encode", ()) if _encoding(old, name) != _encoding(new, name)}
    own["scale"] = {name for name in own.get("scale", ()) if _function(old, name) != _function(new, name)}
    own["paths"] = {path.name for path in new.documents if path not in old.documents}
    return set().union(*own.values())


def _encoding(recipe: Recipe, name: str) -> Any:
    """Return what `encode` says about a column of texts."""
    encoder = next((part for part in recipe.all_texts if part.name == name), None)
    return encoder.order if isinstance(encoder, Ordinals) else type(encoder)


def _function(recipe: Recipe, name: str) -> str | None:
    scaling = recipe.numbers.scalings.get(name)
    return None if scaling is None else scaling.function


def _keep_fills(old: Recipe, recipe: Recipe) -> dict[str, str]:
    """Return the replacements of missing texts: those of the version for the columns whose encoders are kept."""
    before = {part.name: part for part in old.all_texts}
    fills = {}
    for part in recipe.all_texts:
        kept = part.name in before and replace(before[part.name], required=part.required) == part
        source = old.fills if kept and not part.required else recipe.fills
        if part.name in source:
            fills[part.name] = source[part.name]
    return fills


def _keep(old: Sequence[_Encoder], new: Sequence[_Encoder], named: Collection[str]) -> tuple[_Encoder, ...]:
    known = {part.name: part for part in old if part.name not in named}
    return tuple(replace(known[part.name], required=part.required) if part.name in known else part for part in new)


def _keep_images(old: Sequence[Images], new: Sequence[Images], named: Collection[str]) -> tuple[Images, ...]:
    """Return the encoders of images; one of the version is kept if the images have its form."""
    forms = {part.name: part.form for part in new}
    same = [part for part in old if forms.get(part.name) == part.form]
    kept = _keep(same, new, named)
    return tuple(replace(part, skips=own.skips) for part, own in zip(kept, new, strict=True))


def _keep_numbers(old: Numbers, new: Numbers, named: Collection[str]) -> Numbers:
    """Return the encoder of all scalars, in which each column that both have is encoded as before."""
    of_time = {old.names[place] for place in old.durations} ^ {new.names[place] for place in new.durations}
    kept = set(old.names) - set(named) - of_time  # seconds of an interval are no number that the column had before
    places = [old.names.index(name) if name in kept else None for name in new.names]

    def column(before: Sequence[float], after: Sequence[float]) -> tuple[float, ...]:
        return tuple(after[at] if place is None else before[place] for at, place in enumerate(places))

    indicated = [
        at in new.indicators if place is None else place in old.indicators for at, place in enumerate(places)
    ]
    return replace(
        new,
        mean=column(old.mean, new.mean),
        scale=column(old.scale, new.scale),
        fill=column(old.fill, new.fill),
        indicators=tuple(np.flatnonzero(indicated).tolist()),
        scalings={
            name: scaling
            for name in new.names
            if (scaling := (old if name in kept else new).scalings.get(name)) is not None
        },
    )
