"""Describes a training to its user: events of the job's history, and the facts that are stored with the version.

The events tell the chosen settings, text columns with too many distinct values, and rows that are left out.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from indb_tensile.job import JobSpec
from indb_tensile.learning.batches.length_buckets import LengthBuckets
from indb_tensile.learning.encoding.text_encoders import TextFacts
from indb_tensile.learning.training.prepared_training import Prepared
from indb_tensile.request.estimator_rules import is_estimator
from indb_tensile.request.hyperparam_rules import HYPERPARAMS_OF_ESTIMATORS
from indb_tensile.request.network_rules import without_type

if TYPE_CHECKING:
    from indb_tensile.learning.networks.estimators import Fitted  # whose import loads scikit-learn's models


class EventHistory(Protocol):
    """The method of `ProgressWriter` that is used here."""

    def tell(self, kind: str, detail: Mapping[str, Any]) -> None:
        """Add an event to the job's history."""
        ...


def tell_settings(progress_writer: EventHistory, prepared: Prepared) -> None:
    """Add an event with the settings of the training, as text and as data."""
    rows = {"train_rows": prepared.train.rows, "valid_rows": prepared.valid.rows}
    progress_writer.tell("settings", {"message": in_words(prepared), **rows, **training_facts(prepared)})


def tell_columns(progress_writer: EventHistory, prepared: Prepared) -> None:
    """Add a warning for each text column with too many distinct values, and for rows that are left out."""
    for skipped in prepared.skipped:
        subject = f'{skipped.rows} rows are left out, as their image in column "{skipped.column}" cannot be read'
        left_out = {"message": f"{subject}: {'; '.join(skipped.named)}", "column": skipped.column}
        progress_writer.tell("warning", left_out | {"rows": skipped.rows})
    for facts in prepared.preprocessor.text_facts:
        message = warning_about(facts)
        if message is not None:
            about = {"column": facts.name, "distinct": facts.distinct, "categories": facts.categories}
            progress_writer.tell("warning", {"message": message, **about, "other_share": round(facts.other_share, 4)})


def tell_fit(progress_writer: EventHistory, prepared: Prepared, fit: "Fitted") -> None:
    """Add an event with the number of iterations that the fit of a scikit-learn model took."""
    rows = {"train_rows": prepared.train.rows, "valid_rows": prepared.valid.rows}
    message = f"{prepared.architecture['type']} was fitted in {fit.iterations} iterations"
    if fit.best_iteration < fit.iterations:
        message += f"; it stopped as the validation loss did not fall after iteration {fit.best_iteration}"
    progress_writer.tell("settings", {"message": message, **rows, **training_facts(prepared)})


def training_facts(prepared: Prepared) -> dict[str, Any]:
    """Return the settings as a request that repeats the training on other rows.

    `chosen` lists the settings that were chosen from the number of rows.
    """
    hyperparams = prepared.settings.to_hyperparams()
    if is_estimator(prepared.architecture):
        taken = {name: value for name, value in hyperparams.items() if name in HYPERPARAMS_OF_ESTIMATORS}
        return {"hyperparams": taken, "early_stop": None, "chosen": []}
    return {
        "hyperparams": hyperparams,
        "early_stop": prepared.early_stop.to_request(),
        "chosen": list(prepared.chosen),
    }


def data_facts(prepared: Prepared, spec: JobSpec) -> dict[str, Any]:
    """Return what a version was trained on, for the listing of versions: columns, rows, split and their options."""
    parts = {"train": prepared.train.rows, "valid": prepared.valid.rows, "test": prepared.test.rows}
    return {
        "features": list(prepared.preprocessor.recipe.features),
        "rows": sum(parts.values()),
        "parts": parts,
        "rows_without_target": prepared.unlabeled_rows,
        "split": spec.split,
        "preprocess": spec.preprocess,
        "deploy": spec.deploy,
        **({} if spec.transform is None else {"transform": spec.transform}),
    } | ({} if prepared.init_from is None else {"init_from": dict(prepared.init_from)})


def in_words(prepared: Prepared) -> str:
    """Return a sentence with the network, batch size, epochs and early stopping, and which of them were chosen."""
    settings, chosen = prepared.settings, prepared.chosen
    stop = prepared.early_stop
    most = "at most " if stop.patience is not None else ""
    *names, last = [name for name in chosen if name != "early_stop"] or [""]
    by_rows = f"{', '.join(names)} and {last}" if names else last
    why = f" ({by_rows} chosen for {prepared.train.rows} training rows)" if by_rows else ""
    if stop.patience is not None:
        ending = f"; training stops after {stop.patience} epochs without a better validation {stop.metric}"
    elif {"epochs", "early_stop"} <= set(chosen):
        ending = f"; training does not stop early, as the validation part has {prepared.valid.rows} rows"
    else:
        ending = "; training does not stop early"
    network = ""
    if prepared.auto_reason:
        kind = prepared.architecture["type"]
        network = f"{kind} {json.dumps(without_type(prepared.architecture))}, as {prepared.auto_reason}; "
    together = f"an ensemble of {settings.ensemble}, " if settings.ensemble > 1 else ""
    lengths = "" if prepared.buckets is None else f"; {_lengths_in_words(prepared.buckets)}"
    batches = f"batch_size {settings.batch_size}, {most}{settings.epochs} epochs{why}"
    return f"{network}{together}{batches}{ending}{lengths}"


def _lengths_in_words(buckets: LengthBuckets) -> str:
    """Return the lengths to which the texts of batches are padded, and the share of tokens that remains."""
    *shorter, longest = buckets.lengths
    lengths = f"{', '.join(map(str, shorter))} or {longest}"
    share = f"{buckets.token_share:.0%} of the tokens that batches of {longest} have"
    return f'texts of column "{buckets.column.name}" are padded to {lengths} tokens, {share}'


def warning_about(facts: TextFacts) -> str | None:
    """Return a warning about a text column, or None."""
    if facts.nearly_unique:
        return (
            f'column "{facts.name}" has {facts.distinct} different texts in {facts.known_rows} training rows: nearly '
            "every row has a text of its own, from which nothing can be learned; leave it out with exclude, or let a "
            f'network read the texts with preprocess => \'{{"encode": {{"{facts.name}": "tokens"}}}}\''
        )
    if facts.other_rows:
        return (
            f'column "{facts.name}" has {facts.distinct} different texts, more than the {facts.categories} '
            f"categories of preprocess: {facts.other_share:.1%} of its rows count as (other)"
        )
    return None
