"""Explains a prediction: what each column of the row adds to it, in passes of the compute thread."""

from typing import Any

import numpy as np

from indb_tensile.errors import RequestError
from indb_tensile.learning.storage.encoded_rows import rows_of_array

from .answers import INPUT, OUTPUTS
from .prediction_batches import Batches, ServedModel
from .requests import Attribute
from .service_frames import ProtocolError


async def attribution_rows(
    batches: Batches, request: Attribute, model: ServedModel, *, owner: int
) -> list[list[Any]]:
    """Return for each column its share of the prediction, as `ServedModel.attributions` does.

    Raises ProtocolError if the request has not one row.
    """
    if len(request.rows) != 1:
        raise ProtocolError(f"a request attribute has {len(request.rows)} rows, not one")
    (x,) = await batches.predict(request.version, model, request.marked_rows, INPUT, owner=owner)
    if np.isnan(x).any():
        raise RequestError(
            "an image of the row cannot be read, so its prediction is NULL",
            hint="Explain the prediction of a row whose images can be read.",
        )
    own = await batches.predict(request.version, model, rows_of_array(x[None]), OUTPUTS, owner=owner)
    if (odd := model.odd_columns(np.array(own))) is not None:
        return odd
    game, rows = model.shapley_game(x, request.label, request.seed)
    outputs = np.array(await batches.predict(request.version, model, rows, OUTPUTS, owner=owner))
    return model.attributions(game, outputs, request.label)
