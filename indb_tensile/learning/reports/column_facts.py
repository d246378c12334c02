"""Describes the columns of a job's table in its data report: leaks, encodings and values of the features."""

from collections.abc import Iterator, Sequence
from typing import Any

from indb_tensile.learning.encoding.preprocessor import Encoder, Preprocessor, TextEncoder
from indb_tensile.learning.encoding.text_encoders import TextFacts
from indb_tensile.learning.encoding.tokens import TokenFacts
from indb_tensile.learning.reports import leakage
from indb_tensile.learning.reports.report_facts import MOST_NAMES, MOSTLY, Fact, ReportInput, share_text
from indb_tensile.learning.storage.columns import ColumnData, ColumnKind, ColumnRows, Rows
from indb_tensile.learning.storage.moments import FIT_BLOCK_NUMBERS
from indb_tensile.learning.storage.row_storage import row_blocks
from indb_tensile.request.preprocess_rules import PREPROCESS

_COMPARED_ROWS = 1 << 15  # rows compared at once: a block in the processor's cache is several times as fast


def column_facts(subject: ReportInput) -> Iterator[Fact]:
    """Describe the features: findings about leaks first, then encodings and values."""
    recipe, columns = subject.preprocessor.recipe, subject.table.columns
    leaks = leakage.findings(columns, recipe.features, recipe.target.name, recipe.target.task, subject.known)
    for finding in leaks:  # findings come first, because the number of facts of a section is limited
        fact, value, warning = _finding_texts(finding.kind, recipe.target.name)
        yield Fact(section="columns", subject=finding.column, fact=fact, value=value, warning=warning)
    yield from encoding_facts(subject, leaks)


def encoding_facts(subject: ReportInput, leaks: Sequence[leakage.Finding]) -> Iterator[Fact]:
    """Describe how the features are encoded, and their values."""
    recipe, columns = subject.preprocessor.recipe, subject.table.columns
    reported = {(finding.column, finding.kind) for finding in leaks}
    encodings = dict(_encodings(subject.preprocessor))
    texts = {
        facts.name: facts for facts in subject.preprocessor.text_facts if (facts.name, leakage.KEY) not in reported
    }
    train = subject.rows("train")
    for name in recipe.features:
        for own in [path.name for path in recipe.documents if path.column == name] or [name]:
            yield Fact(section="columns", subject=own, fact="encoding", value=encodings[own])
        yield from _value_facts(name, columns[name], train, texts.get(name))
    yield from map(_token_fact, subject.preprocessor.token_facts)
    unused = [
        column.name
        for column in subject.table.described
        if column.name not in (*recipe.features, *recipe.target.source_columns)
    ]
    if unused:
        yield Fact(section="columns", fact="left out of the features", value=", ".join(unused[:MOST_NAMES]))


def _encodings(preprocessor: Preprocessor) -> Iterator[tuple[str, str]]:
    """Yield each feature's name and a description of its encoding."""
    recipe = preprocessor.recipe
    numbers = recipe.numbers
    for place, name in enumerate(numbers.names):
        plain = numbers.mean[place] == 0.0 and numbers.scale[place] == 1.0
        own = "a number as it is" if plain else "a standardised number"
        if name in numbers.scalings:
            own += f", scaled by {numbers.scalings[name].function}"
        yield name, f"{own}, and whether it is missing" if place in numbers.indicators else own
    kinds: dict[str, Sequence[Encoder | TextEncoder]] = {
        "text": recipe.all_texts,
        "time": recipe.times,
        "array": recipe.arrays,
        "labels": recipe.labels,
        "image": recipe.images,
    }
    for kind, encoders in kinds.items():
        for encoder in encoders:
            yield encoder.name, f"{kind}: {len(encoder.outputs)} numbers"
    for image in recipe.images:
        colours = "grey" if image.channels == 1 else "rgb"
        yield image.name, f"image: {image.height} x {image.width} pixels, {colours}, {image.resize}"
    for tokens in recipe.tokens:
        yield tokens.name, f"text: the first {tokens.length} tokens, of {tokens.size} different ones"
    for own_tokens in recipe.network_tokens:
        yield own_tokens.name, f'text: the first {own_tokens.length} tokens of network "{own_tokens.network}"'


def _value_facts(name: str, data: ColumnData, train: Rows, text: TextFacts | None) -> Iterator[Fact]:
    """Describe the values of a column in the training rows.

    Of arrays, labels, documents and images only the missing ones are counted, because a look at the values would need
    additional memory.
    """
    learned = ColumnRows(data, train)
    if data.present and (data.all_finite or data.kind in _NOT_LOOKED_AT):
        absent_rows = 0
    elif data.kind in _NOT_LOOKED_AT:
        absent_rows = sum(int(data.missing[train[start:end]].sum()) for start, end in row_blocks(len(train)))
    else:
        absent_rows = sum(int(block.absent().sum()) for block in learned.blocks(FIT_BLOCK_NUMBERS))
    if absent_rows:
        share = share_text(absent_rows, len(train))
        warning = f"{share} of the training rows have no value" if absent_rows > MOSTLY * len(train) else None
        yield Fact(section="columns", subject=name, fact="missing in the training rows", value=share, warning=warning)
    if data.kind in _NOT_LOOKED_AT or absent_rows == len(train):
        return
    if _is_constant(learned):
        warning = "the column has one value in all training rows: nothing is learned from it"
        yield Fact(section="columns", subject=name, fact="different values", value="1", warning=warning)
    elif text is not None:
        yield _category_fact(text)


_NOT_LOOKED_AT = (ColumnKind.ARRAY, ColumnKind.LABELS, ColumnKind.DOCUMENT, ColumnKind.IMAGE)


def _category_fact(facts: TextFacts) -> Fact:
    warning = None
    if facts.other_rows:
        share = share_text(facts.other_rows, facts.rows)
        warning = (
            f"{facts.distinct - facts.categories} rarer texts, in {share} of the training "
            f'rows, are one category "(other)": preprocess => \'{{"categories": {facts.distinct}}}\' keeps them apart'
        )
    value = f"{facts.categories} of {facts.distinct}"
    return Fact(section="columns", subject=facts.name, fact="categories", value=value, warning=warning)


def _token_fact(facts: TokenFacts) -> Fact:
    share = share_text(facts.whole_rows, facts.known_rows)
    warning = None
    if facts.known_rows and facts.whole_rows < MOSTLY * facts.known_rows:
        more = min(2 * facts.length, PREPROCESS["length"]["maximum"])
        warning = (
            f"the network reads the whole of {share} of the texts only: "
            f'preprocess => \'{{"length": {{"{facts.name}": {more}}}}}\' lets it read more of them'
        )
    value = f"{share} of the texts as a whole"
    return Fact(section="columns", subject=facts.name, fact="read", value=value, warning=warning)


def _is_constant(learned: ColumnRows) -> bool:
    """Return whether all training rows that have a value have the same value.

    Most columns differ in the first block.
    """
    known: list[Any] = []
    for block in learned.blocks(_COMPARED_ROWS):
        present = block.values[~block.absent()]
        if len(present):
            known = known or [present[0]]
            if not (present == known[0]).all():
                return False
    return True


def _finding_texts(kind: str, target: str) -> tuple[str, str, str]:
    """Return the fact, its value and the warning for a kind of finding."""
    advice = "leave it out with exclude, unless its value is available at prediction time"
    return {
        leakage.KEY: (
            "a different value in each row",
            "yes",
            "it looks like a key, which only identifies rows: leave it out with exclude",
        ),
        leakage.COUNTER: (
            "increases with each row",
            "yes",
            "it looks like a key, which only identifies rows: leave it out with exclude",
        ),
        leakage.EQUAL: ("equal to the target", "yes", f"it has the values of {target}: {advice}"),
        leakage.ORDERING: ("in order with the target", "yes", f"it reveals {target}: {advice}"),
        leakage.DETERMINING: ("determines the target", "yes", f"each of its values has one {target}: {advice}"),
        leakage.MISSING_WITH: (
            "missing with the target",
            "yes",
            f"whether its value is missing reveals {target}: {advice}",
        ),
    }[kind]
