"""Builds the data report of a job: a list of facts about the job's table, in words.

The report says which rows were read and which were left out, how the rows were divided and encoded, and what is
suspicious about them. It contains names of columns and classes, counts, shares, metrics, and the target's mean and
standard deviation, but no other value of the table.
"""

from collections.abc import Iterator, Mapping
from itertools import islice

import numpy as np
import numpy.typing as npt

from indb_tensile.job import Task
from indb_tensile.learning.encoding.targets import TargetEncoding
from indb_tensile.learning.reports import leakage
from indb_tensile.learning.reports.column_facts import column_facts, encoding_facts
from indb_tensile.learning.reports.report_facts import MOST_NAMES, MOSTLY, Fact, ReportInput, share_text
from indb_tensile.learning.storage.columns import ColumnKind, ColumnRows, Mask, Rows
from indb_tensile.learning.storage.moments import FIT_BLOCK_NUMBERS, moments
from indb_tensile.learning.storage.row_storage import gathered, row_blocks
from indb_tensile.learning.storage.splits import Hashes, Parts, hash_ranges, row_hashes
from indb_tensile.request.split_rules import PARTS, TABLE_OPTIONS

_MOST_FACTS = 1000  # per section
_LONGEST_LABEL = 60
_FEW_TEST_ROWS = 30  # the report warns about fewer test rows
_DOMINANT = 0.9  # the report warns if the most frequent class has more than this share of the rows
_BLOCK_ROWS = 1 << 15  # rows hashed at once: a block in the processor's cache is several times as fast


def report_data(subject: ReportInput) -> tuple[Fact, ...]:
    """Return all facts that are known before training.

    A warning is attached to the fact that it is about.
    """
    if subject.preprocessor.target.anomaly is not None or subject.preprocessor.target.pair is not None:
        sections: tuple[Iterator[Fact], ...] = (_split_facts(subject), encoding_facts(subject, ()))
        return tuple(fact for section in sections for fact in islice(section, _MOST_FACTS))
    sections = (_row_facts(subject), _split_facts(subject), _target_facts(subject), column_facts(subject))
    return tuple(fact for section in sections for fact in islice(section, _MOST_FACTS))


def _row_facts(subject: ReportInput) -> Iterator[Fact]:
    """Describe the rows that were read, left out, or repeated."""
    table, known = subject.table, len(subject.known)
    yield Fact(section="rows", fact="read", value=str(table.rows))
    dropped = table.rows - known if subject.unlabeled_rows is None else subject.unlabeled_rows
    warning = (
        f"the target is NULL in {share_text(dropped, table.rows)} of the rows"
        if dropped > MOSTLY * table.rows
        else None
    )
    name = subject.preprocessor.target.name
    yield Fact(
        section="rows", subject=name, fact="left out, as the target is NULL", value=str(dropped), warning=warning
    )
    for own in subject.skipped:
        warning = f"{share_text(own.rows, table.rows)} of the rows have an image that cannot be read"
        yield Fact(
            section="rows",
            subject=own.column,
            fact="left out, as the image cannot be read",
            value=str(own.rows),
            warning=warning,
        )
    equal_rows, duplicates = _repeated_rows(_value_hashes(subject), subject.parts)
    yield Fact(section="rows", fact="equal to another row in features and target", value=str(equal_rows))
    if not duplicates:
        return
    share = share_text(duplicates, len(subject.parts.test))
    warning = f"{share} of the test rows are also in the training part: the metric is too optimistic"
    yield Fact(
        section="rows", fact="of the test part equal to a training row", value=str(duplicates), warning=warning
    )


def _repeated_rows(hashes: Hashes, parts: Parts) -> tuple[int, int]:
    """Return how many rows equal an earlier one, and how many test rows equal a training row.

    `hashes` are those of the rows that have a target.
    """
    equal_rows = duplicates = 0
    for rows in hash_ranges(hashes):
        values = hashes[rows]
        ordered = np.sort(values)  # sorting is several times as fast as np.unique and np.isin
        equal_rows += int((ordered[1:] == ordered[:-1]).sum())
        test, train = (values[_common(rows, part)] for part in (parts.test, parts.train))
        if len(train):
            train.sort()
            duplicates += int((train[np.searchsorted(train, test).clip(max=len(train) - 1)] == test).sum())
    return equal_rows, duplicates


def _common(rows: Rows, part: Rows) -> Rows:
    """Return the places in `rows` of the positions that are in the part too. Both ascend."""
    if len(rows) == 0 or len(part) == 0:
        return np.zeros(0, np.int64)
    places = [np.zeros(0, np.int64)]
    for start, end in row_blocks(len(rows)):
        block = rows[start:end]
        members = part[slice(*np.searchsorted(part, (block[0], block[-1] + 1)))]
        places.append(start + np.flatnonzero(_contains(members, block)))
    return np.concatenate(places)


def _contains(members: Rows, rows: Rows) -> Mask:
    if not len(members):
        return np.zeros(len(rows), np.bool_)
    contained: Mask = members[np.searchsorted(members, rows).clip(max=len(members) - 1)] == rows
    return contained


def _value_hashes(subject: ReportInput) -> Hashes:
    """Return a hash of features and target for each row that has a target."""
    table, names = subject.table, subject.preprocessor.recipe.features
    identity = sorted({*names, subject.preprocessor.target.name})
    hashes = table.row_hash
    if list(table.identity) != identity:
        columns = [table.columns[name] for name in identity]
        hashed = table.storage.array(table.rows, (), np.uint64)
        for start, end in row_blocks(table.rows, _BLOCK_ROWS):
            hashed.write(start, row_hashes([column.part(start, end) for column in columns], end - start))
        hashes = hashed.values
    return hashes if len(subject.known) == table.rows else gathered(hashes, subject.known, table.storage)


def _split_facts(subject: ReportInput) -> Iterator[Fact]:
    """Describe how the rows were divided and how many rows each part has."""
    table, split = subject.table, subject.split
    warning = None
    if split.withheld is None:
        key_names = ", ".join(table.key)
        key_words = "the key of the split" if split.key is not None else "the primary key"
        method = "a hash of " + (
            f"{key_words} ({key_names})" if key_names else "the row's values, as there is no primary key"
        )
        tables = "; ".join(
            f"the {_PART_NAMES[part]} rows are those of {getattr(split, part)}" for part in split.tables
        )
        method = "; ".join(filter(None, (tables, method if len(split.tables) < len(TABLE_OPTIONS) else "")))
        if split.stratify is not None:
            method += f", with equal shares of each {split.stratify}"
        warning = None if split.test is not None else _time_order_warning(subject)
    elif split.group is not None:
        method = f"a hash of {split.group}, whose rows stay together"
    else:
        method = (
            f"the last {100 * split.last:g} % by {split.by}" if split.last is not None else f"column {split.column}"
        )
    yield Fact(section="split", fact="method", value=method, warning=warning)
    yield Fact(section="split", fact="seed", value=str(split.seed))
    if subject.parts.ranked:
        value = "rows chosen by rank, since the hashes alone would have left a part empty or too small"
        yield Fact(section="split", fact="small table", value=value)
    for part in PARTS:
        rows = len(getattr(subject.parts, part))
        yield Fact(
            section="split",
            subject=part,
            fact="rows",
            value=f"{rows} ({share_text(rows, len(subject.known))})",
            warning=_part_warning(part, rows, subject),
        )


def _part_warning(part: str, rows: int, subject: ReportInput) -> str | None:
    """Return a warning if a part has no row or too few rows."""
    if part == "valid" and not rows:
        return "there are no validation rows: training cannot measure how good the model is on unseen rows"
    if part == "test" and rows < _FEW_TEST_ROWS:
        return f"only {rows} test row{'s' if rows > 1 else ''}: the metric is a rough estimate"
    return None


def _time_order_warning(subject: ReportInput) -> str | None:
    """Return a warning if a column orders the rows in time but the rows are divided at random."""
    for name, data in subject.table.columns.items():
        if data.kind in (ColumnKind.DATE, ColumnKind.TIME) and leakage.increases(
            data.take(leakage.at_most(subject.known))
        ):
            offer = f'split => \'{{"last": {subject.split.test_size:g}, "by": "{name}"}}\''
            return (
                f'"{name}" increases with the rows, and test rows lie between training rows in time: '
                f"{offer} tests on the latest rows"
            )
    return None


def _target_facts(subject: ReportInput) -> Iterator[Fact]:
    """Describe the target: mean and deviation of each part, or the rows of each class."""
    target, data = subject.preprocessor.target, subject.target
    yield Fact(section="target", subject=target.name, fact="task", value=target.task.value)
    if target.task is Task.REGRESSION:
        yield from _quantity_facts(subject)
        return
    counts = {part: _class_counts(target, ColumnRows(data, getattr(subject.parts, part))) for part in PARTS}
    total = sum(counts.values(), np.zeros(target.outputs, np.int64))
    exclusive = target.task is Task.CLASSIFICATION
    most_frequent = int(np.argmax(total))
    for class_number in np.argsort(-total, kind="stable").tolist()[:MOST_NAMES]:
        rows_by_part = {part: int(counts[part][class_number]) for part in PARTS}
        warning = _class_warning(rows_by_part)
        if exclusive and class_number == most_frequent and total[class_number] > _DOMINANT * total.sum():
            warning = (
                f"always answering this class gives accuracy {total[class_number] / total.sum():.3g}: use "
                "metric => 'balanced_accuracy'"
            )
        value = ", ".join(f"{part} {rows}" for part, rows in rows_by_part.items())
        label = target.names[class_number][:_LONGEST_LABEL]
        fact = "rows of the class" if exclusive else "rows with the label"
        yield Fact(section="target", subject=label, fact=fact, value=value, warning=warning)
    if target.outputs > MOST_NAMES:
        others = str(target.outputs - MOST_NAMES)
        fact = "classes that are not listed" if exclusive else "labels that are not listed"
        yield Fact(section="target", subject=target.name, fact=fact, value=others)


def _quantity_facts(subject: ReportInput) -> Iterator[Fact]:
    """Describe the values of a regression: mean and deviation of each part, for each of the first values."""
    target, data = subject.preprocessor.target, subject.target
    names = target.values or (target.name,)
    for part in PARTS:
        values = ColumnRows(data, getattr(subject.parts, part))
        if len(values):
            means, deviations = _means_and_deviations(values, len(names))
            for name, mean, deviation in list(zip(names, means, deviations, strict=True))[:MOST_NAMES]:
                figures = f"mean {mean:.4g}, standard deviation {deviation:.4g}"
                yield Fact(section="target", subject=name, fact=f"{_PART_NAMES[part]} values", value=figures)
    if len(names) > MOST_NAMES:
        others = str(len(names) - MOST_NAMES)
        yield Fact(section="target", subject=target.name, fact="values that are not listed", value=others)


def _means_and_deviations(values: ColumnRows, width: int) -> tuple[list[float], list[float]]:
    if len(values) * width <= FIT_BLOCK_NUMBERS:
        numbers = values.data.take(values.rows).numbers().reshape(len(values), width)
        return numbers.mean(axis=0).tolist(), numbers.std(axis=0).tolist()
    blocks = (block.numbers().reshape(-1, width) for block in values.blocks(FIT_BLOCK_NUMBERS))
    means, scales = moments(blocks, ["target"] * width)
    return means.tolist(), scales.tolist()


def _class_counts(target: TargetEncoding, values: ColumnRows) -> npt.NDArray[np.int64]:
    """Return the rows of each class or label."""
    counts = np.zeros(target.outputs, np.int64)
    for block in values.blocks(FIT_BLOCK_NUMBERS):
        encoded = target.encode(block)
        if target.task is Task.MULTILABEL:
            counts += encoded.astype(np.int64).sum(axis=0)
        else:
            counts += np.bincount(encoded, minlength=target.outputs)
    return counts


_PART_NAMES = {"train": "training", "valid": "validation", "test": "test"}


def _class_warning(rows: Mapping[str, int]) -> str | None:
    """Return a warning if a class has no training row or no test row."""
    if not rows["train"]:
        return "the training part has no row of this class: the model cannot learn it"
    return None if rows["test"] else "the test part has no row of this class: the metric says nothing about it"
