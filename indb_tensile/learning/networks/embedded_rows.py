"""Builds the networks for tables (`table_networks.py`, `tabm.py`) from their checked parameters."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from indb_tensile.errors import RequestError
from indb_tensile.learning.networks.image_networks import ImageColumn, ImageOptions
from indb_tensile.learning.networks.layers import ACTIVATION_MODULES, Shape
from indb_tensile.learning.networks.member_mean import OutputKind
from indb_tensile.learning.networks.pretrained_vectors import PretrainedOptions
from indb_tensile.learning.networks.registered_network import RegisteredNetwork
from indb_tensile.learning.networks.row_embeddings import EmbeddingOptions, RowEmbedding, RowLayout, TokenEmbedding
from indb_tensile.learning.networks.table_networks import (
    CrossNetwork,
    EmbeddedDense,
    FeatureTransformer,
    ResidualNetwork,
    WideAndDeep,
)
from indb_tensile.learning.networks.tabm import TabM
from indb_tensile.learning.networks.token_networks import TextColumn, TextOptions
from indb_tensile.learning.networks.two_towers import Tower, TwoTowers

_Values = Mapping[str, Any]


def table_network(
    kind: str,
    values: _Values,
    input_shape: Shape,
    outputs: int,
    output_kind: OutputKind,
    network: RegisteredNetwork | None = None,
) -> nn.Module:
    """Build the network of this kind for flat rows. Works on any device. `network` is for the kind `pretrained`.

    Raises RequestError if `numbers` and `categories` are more than the numbers of a row.
    """
    options = EmbeddingOptions(
        kind=values["number_embedding"],
        width=values["embedding_width"],
        bins=values["bins"],
        frequencies=values["frequencies"],
        frequency_scale=values["frequency_scale"],
        texts=PretrainedOptions.of(values, network) if kind == "pretrained" else TextOptions.of(values),
        images=ImageOptions.of(values),
    )
    layout = _layout(kind, values, input_shape)
    if kind == "tabm":
        return _tabm(values, layout, options, outputs, output_kind)
    return _BUILDERS[kind](values, layout, options, outputs)


def _layout(kind: str, values: _Values, input_shape: Shape) -> RowLayout:
    """Return the parts of a row. Without a worker's counts all values are numbers."""
    (width,) = input_shape
    categories = tuple(values["categories"] or ())
    vocabularies, lengths = values["vocabularies"] or (), values["lengths"] or ()
    if len(vocabularies) != len(lengths):
        raise RequestError(
            f"architecture {kind}: there are {len(vocabularies)} vocabularies and {len(lengths)} lengths",
            hint='Leave "vocabularies" and "lengths" out: they are counted from the columns.',
        )
    texts = tuple(map(_text_column, vocabularies, lengths))
    images = _image_columns(kind, values["images"] or ())
    coded = len(categories) + sum(lengths) + sum(image.size for image in images)
    numbers = width - coded if values["numbers"] is None else values["numbers"]
    if numbers < 0 or numbers + coded > width:
        raise RequestError(
            f"architecture {kind}: {numbers} numbers, {len(categories)} categories, {sum(lengths)} tokens and the "
            f"pixels of {len(images)} images are more than the {width} numbers of a row",
            hint='Leave "numbers", "categories", "lengths" and "images" out: they are counted from the columns.',
        )
    others = width - numbers - coded
    return RowLayout(numbers=numbers, others=others, categories=categories, texts=texts, images=images)


def _image_columns(kind: str, sizes: Sequence[int]) -> tuple[ImageColumn, ...]:
    """Return the columns of images. `sizes` has channels, height and width of each column, one after the other."""
    if len(sizes) % 3:
        raise RequestError(
            f'architecture {kind}: "images" has {len(sizes)} numbers, which are not three for each image',
            hint='Leave "images" out: it follows from the columns.',
        )
    triples = (sizes[place : place + 3] for place in range(0, len(sizes), 3))
    return tuple(ImageColumn(channels=channels, height=height, width=own) for channels, height, own in triples)


def _text_column(vocabulary: int, length: int) -> TextColumn:
    return TextColumn(vocabulary=vocabulary, length=length)


def _tabm(
    values: _Values, layout: RowLayout, options: EmbeddingOptions, outputs: int, output_kind: OutputKind
) -> nn.Module:
    return TabM(
        RowEmbedding(layout, options),
        values["members"],
        values["hidden"],
        outputs,
        output_kind=output_kind,
        activation=ACTIVATION_MODULES[values["activation"]],
        dropout=values["dropout"],
    )


def _residual(values: _Values, layout: RowLayout, options: EmbeddingOptions, outputs: int) -> nn.Module:
    return ResidualNetwork(
        RowEmbedding(layout, options),
        values["width"],
        values["blocks"],
        outputs,
        activation=ACTIVATION_MODULES[values["activation"]],
        dropout=values["dropout"],
    )


def _transformer(values: _Values, layout: RowLayout, options: EmbeddingOptions, outputs: int) -> nn.Module:
    tokens = TokenEmbedding(layout, options)
    return FeatureTransformer(
        tokens, options.width, values["heads"], values["blocks"], outputs, dropout=values["dropout"]
    )


def _pretrained(values: _Values, layout: RowLayout, options: EmbeddingOptions, outputs: int) -> nn.Module:
    if not layout.texts:
        raise RequestError(
            "architecture pretrained: no column is read as tokens",
            hint='Name a column of texts in preprocess: {"encode": {"description": "tokens"}}.',
        )
    return EmbeddedDense(
        RowEmbedding(layout, options),
        values["hidden"],
        outputs,
        activation=ACTIVATION_MODULES[values["activation"]],
        dropout=values["dropout"],
    )


def _crosses(values: _Values, layout: RowLayout, options: EmbeddingOptions, outputs: int) -> nn.Module:
    return CrossNetwork(
        RowEmbedding(layout, options),
        values["crosses"],
        values["hidden"],
        outputs,
        activation=ACTIVATION_MODULES[values["activation"]],
        dropout=values["dropout"],
    )


def _wide_and_deep(values: _Values, layout: RowLayout, options: EmbeddingOptions, outputs: int) -> nn.Module:
    return WideAndDeep(
        RowEmbedding(layout, options),
        values["hidden"],
        outputs,
        activation=ACTIVATION_MODULES[values["activation"]],
        dropout=values["dropout"],
    )


def _two_towers(values: _Values, layout: RowLayout, options: EmbeddingOptions, outputs: int) -> nn.Module:
    """Build two towers. Without a worker's ranges the second half of a row is the item."""
    ranges = values["item_ranges"] or (layout.width // 2, layout.width)
    if list(ranges) != sorted(set(ranges)) or len(ranges) % 2 or ranges[-1] > layout.width:
        raise RequestError(
            f'architecture two_towers: "item_ranges" does not divide the {layout.width} numbers of a row',
            hint='Leave "item_ranges" out: it follows from the columns of the target.',
        )

    def tower(own: RowLayout) -> nn.Module:
        return Tower(
            RowEmbedding(own, options),
            values["hidden"],
            outputs // 2,
            activation=ACTIVATION_MODULES[values["activation"]],
            dropout=values["dropout"],
        )

    return TwoTowers(layout, ranges, tower, values["temperature"])


_BUILDERS: dict[str, Callable[[_Values, RowLayout, EmbeddingOptions, int], nn.Module]] = {
    "residual_mlp": _residual,
    "ft_transformer": _transformer,
    "dcn": _crosses,
    "wide_and_deep": _wide_and_deep,
    "pretrained": _pretrained,
    "two_towers": _two_towers,
}
