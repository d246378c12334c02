"""What a job's table was found to be: what was read and left out, how it was divided, encoded, and what is doubtful.

A report is a list of facts in words. It names columns and classes and has no other value of the table: means and
spreads of a target are the only figures made of values.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from indb_tensile.job import Task
from indb_tensile.learning import leakage
from indb_tensile.learning.columns import ColumnData, Kind, Mask, Rows, Table
from indb_tensile.learning.encoders import TextFacts
from indb_tensile.learning.evaluation import HIGHER_IS_BETTER, evaluate
from indb_tensile.learning.feature_options import FeatureOptions
from indb_tensile.learning.features import Preprocessor
from indb_tensile.learning.splits import PARTS, Hashes, Parts, Split, row_hashes

_MOST_FACTS = 1000  # of one section
_MOST_CLASSES = 50
_LONGEST_LABEL = 60
_FEW_TEST_ROWS = 30
_RARE = 0.1  # a commonest class with all but this share of the rows is said to dominate
_MOSTLY = 0.5
_BLOCK_ROWS = 1 << 15  # hashed at once: in the processor's cache that is several times as fast
_SLIGHT = 0.01  # of a regression's figure: less is no difference


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One line of a report. `subject` is a column, a class or a metric; a `warning` is a sentence."""

    section: str
    fact: str
    value: str
    subject: str | None = None
    warning: str | None = None

    def to_json(self) -> dict[str, str | None]:
        """As it is stored."""
        return {name: getattr(self, name) for name in ("section", "subject", "fact", "value", "warning")}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Subject:
    """A table that was read, and what was made of it. `known` are its rows with a target; parts are places there."""

    table: Table
    known: Rows
    parts: Parts
    split: Split
    preprocessor: Preprocessor
    options: FeatureOptions

    @property
    def target(self) -> ColumnData:
        """The targets of the rows that have one."""
        return self.table.columns[self.preprocessor.target.name].take(self.known)

    def rows(self, part: str) -> Rows:
        """The positions of a part's rows in the table."""
        places: Rows = getattr(self.parts, part)
        return self.known[places]


def report_data(subject: Subject) -> tuple[Fact, ...]:
    """Everything that is known before training. Warnings come with the fact that they are about."""
    sections = (_rows(subject), _split(subject), _target(subject), _columns(subject))
    return tuple(fact for section in sections for fact in islice(section, _MOST_FACTS))


def report_result(
    metric: str, values: Mapping[str, float], preprocessor: Preprocessor, train: Any, test: Any
) -> tuple[Fact, ...]:
    """The metric on the test rows beside that of a constant answer; `train` and `test` are encoded targets."""
    if metric not in values:
        undefined = f"the test rows do not define {metric}: versions cannot be compared by it"
        return (
            Fact(section="result", subject=metric, fact="on the test rows", value="undefined", warning=undefined),
        )
    constant = _constant_answer(preprocessor, train, test).get(metric)
    fact = Fact(section="result", subject=metric, fact="on the test rows", value=f"{values[metric]:.4g}")
    if constant is None:
        return (fact,)
    warning: str | None = None
    if _no_better(metric, values[metric], constant, len(test)):
        classifies = preprocessor.target.task is Task.CLASSIFICATION
        answer = "the commonest class" if metric == "accuracy" else "the shares of the classes"
        warning = (
            f"{metric} {values[metric]:.4g} is no better than always answering "
            f"{answer if classifies else 'the mean'} of the training rows ({constant:.4g}): the model has learned "
            "nothing that helps to predict the test rows"
        )
    value = f"{constant:.4g}"
    return (fact, Fact(section="result", subject=metric, fact="of a constant answer", value=value, warning=warning))


def _rows(subject: Subject) -> Iterator[Fact]:
    table, known = subject.table, len(subject.known)
    yield Fact(section="rows", fact="read", value=str(table.rows))
    dropped = table.rows - known
    warning = (
        f"the target is NULL in {_share(dropped, table.rows)} of the rows" if dropped > _MOSTLY * table.rows else None
    )
    name = subject.preprocessor.target.name
    yield Fact(
        section="rows", subject=name, fact="left out, as the target is NULL", value=str(dropped), warning=warning
    )
    values = _value_hashes(subject)
    ordered = np.sort(values)  # several times as fast as np.unique and np.isin
    equal = int((ordered[1:] == ordered[:-1]).sum())
    yield Fact(section="rows", fact="equal to another row in features and target", value=str(equal))
    test, train = values[subject.parts.test], np.sort(values[subject.parts.train])
    twins = int((train[np.searchsorted(train, test).clip(max=len(train) - 1)] == test).sum())
    if not twins:
        return
    warning = f"{_share(twins, len(test))} of the test rows are also in the training part: the metric flatters"
    yield Fact(section="rows", fact="of the test part equal to a training row", value=str(twins), warning=warning)


def _value_hashes(subject: Subject) -> Hashes:
    """A hash of features and target for each row with a target."""
    table, names = subject.table, subject.preprocessor.recipe.features
    identity = sorted({*names, subject.preprocessor.target.name})
    if list(table.identity) == identity:
        return table.row_hash[subject.known]
    columns = [table.columns[name] for name in identity]
    starts = range(0, table.rows, _BLOCK_ROWS)
    blocks = [[column.part(start, start + _BLOCK_ROWS) for column in columns] for start in starts]
    hashes = np.concatenate([row_hashes(block, len(block[0].missing)) for block in blocks])
    return hashes[subject.known]


def _split(subject: Subject) -> Iterator[Fact]:
    table, split = subject.table, subject.split
    warning = None
    if split.divider is None:
        named = ", ".join(table.key)
        how = "a hash of " + (
            f"the primary key ({named})" if named else "the row's values, as there is no primary key"
        )
        warning = _random_in_time(subject)
    else:
        how = f"the last {100 * split.last:g} % by {split.by}" if split.last is not None else f"column {split.column}"
    yield Fact(section="split", fact="decided by", value=how, warning=warning)
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
            value=f"{rows} ({_share(rows, len(subject.known))})",
            warning=_of_part(part, rows, subject),
        )


def _of_part(part: str, rows: int, subject: Subject) -> str | None:
    if part == "valid" and not rows:
        return "no row validates: no figure tells during training how good the model is on rows that it has not seen"
    if part == "test" and rows < _FEW_TEST_ROWS:
        return f"one row more or less right moves an accuracy by {100 / rows:.2g} points: the metric is a rough guess"
    return None


def _random_in_time(subject: Subject) -> str | None:
    """Which column orders the rows in time, where they are divided as if none did."""
    for name, data in subject.table.columns.items():
        if data.kind in (Kind.DATE, Kind.TIME) and leakage.increases(data.take(subject.known)):
            offer = f'split => \'{{"last": {subject.split.test_size:g}, "by": "{name}"}}\''
            return (
                f'"{name}" increases with the rows, and test rows lie between training rows in time: '
                f"{offer} tests on the latest rows"
            )
    return None


def _target(subject: Subject) -> Iterator[Fact]:
    target, data = subject.preprocessor.target, subject.target
    yield Fact(section="target", subject=target.name, fact="task", value=target.task.value)
    if target.task is Task.REGRESSION:
        for part in PARTS:
            values = data.numbers()[getattr(subject.parts, part)]
            if len(values):
                figures = f"mean {values.mean():.4g}, standard deviation {values.std():.4g}"
                yield Fact(section="target", subject=target.name, fact=f"values that {_DO[part]}", value=figures)
        return
    codes = target.encode(data)
    counts = {part: np.bincount(codes[getattr(subject.parts, part)], minlength=target.outputs) for part in PARTS}
    total = sum(counts.values(), np.zeros(target.outputs, np.int64))
    commonest = int(np.argmax(total))
    for place in np.argsort(-total, kind="stable").tolist()[:_MOST_CLASSES]:
        here = {part: int(counts[part][place]) for part in PARTS}
        warning = _of_class(here)
        if place == commonest and total[place] > (1 - _RARE) * total.sum():
            warning = (
                f"always answering this class gives accuracy {total[place] / total.sum():.3g}: judge by "
                "metric => 'balanced_accuracy'"
            )
        value = ", ".join(f"{part} {rows}" for part, rows in here.items())
        label = target.names[place][:_LONGEST_LABEL]
        yield Fact(section="target", subject=label, fact="rows of the class", value=value, warning=warning)
    if target.outputs > _MOST_CLASSES:
        others = str(target.outputs - _MOST_CLASSES)
        yield Fact(section="target", subject=target.name, fact="classes that are not listed", value=others)


_DO = {"train": "train", "valid": "validate", "test": "test"}


def _of_class(rows: Mapping[str, int]) -> str | None:
    if not rows["train"]:
        return "no row of this class trains: the model cannot learn it"
    return None if rows["test"] else "no row of this class tests: the metric says nothing of it"


def _columns(subject: Subject) -> Iterator[Fact]:
    recipe, columns = subject.preprocessor.recipe, subject.table.columns
    found = leakage.findings(columns, recipe.features, recipe.target.name, recipe.target.task, subject.known)
    for finding in found:  # first, since a section is bounded
        fact, value, warning = _words(finding.kind, recipe.target.name)
        yield Fact(section="columns", subject=finding.column, fact=fact, value=value, warning=warning)
    told = {(finding.column, finding.kind) for finding in found}
    encodings = dict(_encodings(subject.preprocessor))
    texts = {facts.name: facts for facts in subject.preprocessor.text_facts if (facts.name, leakage.KEY) not in told}
    train = subject.rows("train")
    for name in recipe.features:
        yield Fact(section="columns", subject=name, fact="encoding", value=encodings[name])
        yield from _values(name, columns[name], train, texts.get(name))
    left = [
        column.name for column in subject.table.described if column.name not in (*recipe.features, recipe.target.name)
    ]
    if left:
        yield Fact(section="columns", fact="left out of the features", value=", ".join(left[:_MOST_CLASSES]))


def _encodings(preprocessor: Preprocessor) -> Iterator[tuple[str, str]]:
    recipe = preprocessor.recipe
    numbers = recipe.numbers
    for place, name in enumerate(numbers.names):
        plain = numbers.mean[place] == 0.0 and numbers.scale[place] == 1.0
        own = "a number as it is" if plain else "a standardised number"
        yield name, f"{own}, and whether it is missing" if place in numbers.indicators else own
    for kind, parts in (("text", recipe.texts), ("time", recipe.times), ("array", recipe.arrays)):
        for part in parts:
            yield part.name, f"{kind}: {len(part.outputs)} numbers"


def _values(name: str, data: ColumnData, train: Rows, text: TextFacts | None) -> Iterator[Fact]:
    """What the training rows have in a column; of arrays only which are missing, as looking at them takes memory."""
    gone = data.missing if data.kind is Kind.ARRAY else data.absent()
    absent = int(gone[train].sum())
    if absent:
        share = _share(absent, len(train))
        warning = f"{share} of the training rows have no value" if absent > _MOSTLY * len(train) else None
        yield Fact(section="columns", subject=name, fact="missing in the training rows", value=share, warning=warning)
    if data.kind is Kind.ARRAY or absent == len(train):
        return
    if _is_constant(data, gone, train):
        warning = "it has one value in all training rows: nothing is learned from it"
        yield Fact(section="columns", subject=name, fact="different values", value="1", warning=warning)
    elif text is not None:
        yield _categories(text)


def _categories(facts: TextFacts) -> Fact:
    warning = None
    if facts.other_rows:
        share = _share(facts.other_rows, facts.rows)
        warning = (
            f"{facts.distinct - facts.categories} rarer texts, in {share} of the training "
            f'rows, are one category "(other)": preprocess => \'{{"categories": {facts.distinct}}}\' keeps them apart'
        )
    value = f"{facts.categories} of {facts.distinct}"
    return Fact(section="columns", subject=facts.name, fact="categories", value=value, warning=warning)


def _is_constant(data: ColumnData, gone: Mask, train: Rows) -> bool:
    """Whether a value that some training row has is that of all that have one. A few rows tell that most are not."""
    for rows in (train[:_BLOCK_ROWS], train):
        present = data.values[rows[~gone[rows]]]
        if len(present) and not (present == present[0]).all():
            return False
    return True


def _words(kind: str, target: str) -> tuple[str, str, str]:
    out = "leave it out with exclude, unless it is known when a row is to be predicted"
    return {
        leakage.KEY: (
            "another value in each row",
            "yes",
            "it looks like a key, which tells rows apart and nothing else: leave it out with exclude",
        ),
        leakage.COUNTER: (
            "counts up with the rows",
            "yes",
            "it looks like a key, which tells rows apart and nothing else: leave it out with exclude",
        ),
        leakage.EQUAL: ("equal to the target", "yes", f"it has the values of {target}: {out}"),
        leakage.ORDERING: ("in order with the target", "yes", f"it gives {target} away: {out}"),
        leakage.DETERMINING: ("determines the target", "yes", f"each of its values has one {target}: {out}"),
        leakage.MISSING_WITH: ("missing with the target", "yes", f"whether it is missing gives {target} away: {out}"),
    }[kind]


def _constant_answer(preprocessor: Preprocessor, train: Any, test: Any) -> dict[str, float]:
    """The metrics of a model that answers every row alike, as the training rows suggest."""
    target = preprocessor.target
    if target.task is Task.REGRESSION:
        return evaluate(target.task, np.full((len(test), 1), train.mean(), np.float64), test, preprocessor)
    counts = np.bincount(train, minlength=target.outputs)
    shares = np.log((counts + 1e-9) / counts.sum())
    return evaluate(target.task, np.tile(shares, (len(test), 1)), test, preprocessor)


def _no_better(metric: str, value: float, constant: float, rows: int) -> bool:
    """Whether a metric is at the level of a constant answer: a share by less than its standard error above it."""
    if not HIGHER_IS_BETTER[metric]:
        return value >= (1 - _SLIGHT) * constant
    if metric == "r2":
        return value <= max(constant, 0.0) + _SLIGHT
    error = (max(constant * (1 - constant), 0.0) / rows) ** 0.5 if 0 <= constant <= 1 else 0.0
    return value <= constant + error


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.3g} %" if whole else "0 %"
