"""Reads a stored model of scikit-learn whose origin may be unknown, such as that of a file.

skops builds no types but those that are allowed, and these include all estimators of scikit-learn. So the type is
checked. The trees are checked too, because the compiled code of scikit-learn follows the indices of nodes and columns
without a check of its own.
"""

import io
import warnings
import zipfile
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge

from indb_tensile.errors import DatabaseError

_TYPES: dict[str, tuple[type, ...]] = {
    "boosting": (HistGradientBoostingClassifier, HistGradientBoostingRegressor),
    "linear": (LogisticRegression, Ridge),
}
# What skops may build besides the types that it trusts itself. None of them does anything when it is built.
_TRUSTED = (
    "functools.partial",
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
    "sklearn.utils.validation.check_array",
)
_MOST_BINS = 256  # most bins of a column: a set of categories has a bit for each


def read_estimator(kind: str, stored: bytes) -> Any:
    """Return the model in these bytes. Raises DatabaseError for bytes that are no model of this kind."""
    from skops import io as skops  # its import takes a second of a processor

    try:
        _require_plain(stored)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of scikit-learn's other minor versions, whose models it reads
            fitted = skops.loads(stored, trusted=list(_TRUSTED))
            _require_type(kind, fitted)
            if kind == "boosting":
                _require_sound_trees(fitted)
    except Exception as error:
        raise DatabaseError(
            f"the stored {kind} model cannot be read: {type(error).__name__}: {error}",
            hint="A model of scikit-learn is read by the version that wrote it. Train it again.",
        ) from error
    return fitted


def _require_plain(stored: bytes) -> None:
    """Refuse compressed parts, which skops does not write: they may have a thousand times their size in memory."""
    with zipfile.ZipFile(io.BytesIO(stored)) as archive:
        parts = archive.infolist()
    for part in parts:
        if part.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"its part {part.filename[:100]!r} is compressed")
    if sum(part.file_size for part in parts) > len(stored):
        raise ValueError("its parts overlap")


def _require_type(kind: str, fitted: Any) -> None:
    if type(fitted) not in _TYPES[kind]:
        raise ValueError(f"it is of the type {type(fitted).__name__}")


def _require_sound_trees(fitted: Any) -> None:
    width = fitted.n_features_in_
    preprocessed = fitted._preprocess_X(np.zeros((1, width)), reset=False)  # noqa: SLF001
    if preprocessed.shape != (1, width):
        raise ValueError("its preprocessing changes the number of columns")
    mapper = fitted._bin_mapper  # noqa: SLF001
    for is_categorical, categories in zip(mapper.is_categorical_, mapper.bin_thresholds_, strict=True):
        if is_categorical and not all(0 <= category < _MOST_BINS for category in categories):
            raise ValueError("it has a category that no set can hold")
    known, places = mapper.make_known_categories_bitsets()
    if len(places) != width or any(places[mapper.is_categorical_.astype(bool)] >= len(known)):
        raise ValueError("its categories are not those of its columns")
    for trees in fitted._predictors:  # noqa: SLF001
        for tree in trees:
            _require_sound_tree(tree, width)


def _require_sound_tree(tree: Any, width: int) -> None:
    """Refuse a tree with an index outside the tree, or with a path that does not end."""
    nodes = tree.nodes
    if not len(nodes):
        raise ValueError("a tree has no nodes")
    inner = nodes["is_leaf"] == 0
    own = np.arange(len(nodes))[inner]
    for side in ("left", "right"):
        following = nodes[side][inner]
        if np.any(following <= own) or np.any(following >= len(nodes)):
            raise ValueError(f"a node of a tree has a {side} child that does not follow it")
    if np.any(nodes["feature_idx"][inner] < 0) or np.any(nodes["feature_idx"][inner] >= width):
        raise ValueError("a node of a tree tests a column that is not there")
    sets = nodes["bitset_idx"][inner & (nodes["is_categorical"] != 0)]
    if np.any(sets >= len(tree.raw_left_cat_bitsets)):
        raise ValueError("a node of a tree tests a set of categories that is not there")
