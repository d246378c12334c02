"""Makes predictors of stored versions. A version out of a file is checked before anything of its size is built."""

from indb_tensile.catalog.models import StoredVersion
from indb_tensile.errors import DatabaseError
from indb_tensile.learning.models.artifacts import ModelBundle
from indb_tensile.learning.models.model_predictor import ModelPredictor
from indb_tensile.learning.models.stored_model_check import check_imported_model

from .catalog_networks import registered


def predictor_of(stored: StoredVersion) -> ModelPredictor:
    """Return the predictor of a version. Raises DatabaseError for one that cannot be read."""
    _check(stored)
    return ModelPredictor.load(stored.bundle, stored.weights, registered(stored.network))


def bundle_of(stored: StoredVersion) -> ModelBundle:
    """Return the weights of a version with its network. Raises DatabaseError for one that cannot be read."""
    _check(stored)
    return ModelBundle.load(stored.bundle, stored.weights, registered(stored.network))


def _check(stored: StoredVersion) -> None:
    """Check a version that no training of this database has published, whatever wrote its rows."""
    if not stored.imported:
        return
    if stored.bundle.get("architecture") != stored.architecture or stored.bundle.get("task") != stored.task.value:
        raise DatabaseError(
            f'version {stored.number} of model "{stored.model}" contradicts itself: its network or its task differs '
            "from that of its preprocessing",
            hint="Import the file again: tensile models import FILE --name NAME.",
        )
    check_imported_model(stored.bundle, stored.weights)
