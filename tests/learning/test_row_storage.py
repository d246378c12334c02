"""Rows in a file have the bits of rows in memory, and a disk that does not serve gives a clear error."""

import gc
import re
import resource
import signal
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from indb_tensile.errors import DataError, RowFileError
from indb_tensile.job import JobSpec, Task
from indb_tensile.learning.batches import shuffling
from indb_tensile.learning.batches.batch_order import batches
from indb_tensile.learning.batches.batch_prefetch import BatchPrefetcher
from indb_tensile.learning.decoding import documents
from indb_tensile.learning.encoding import encoded_parts, encoders, row_weights, scalings, targets, text_encoders
from indb_tensile.learning.encoding.encoded_parts import Part
from indb_tensile.learning.relation.locked_relation import ReadLimits
from indb_tensile.learning.relation.memory_estimate import RowMemoryLimits
from indb_tensile.learning.reports import column_facts, datareport
from indb_tensile.learning.storage import moments, splits
from indb_tensile.learning.storage.block_cache import BlockCache
from indb_tensile.learning.storage.byte_strings import StoredTexts
from indb_tensile.learning.storage.row_storage import FileStorage, RowStorage
from indb_tensile.learning.training.preparation import prepare
from indb_tensile.learning.training.prepared_training import Prepared
from tests.conftest import Database
from tests.learning.relations import relation
from tests.nightly import nightly_unless

pytestmark = [pytest.mark.postgres, pytest.mark.shares_database]

PLENTY = RowMemoryLimits(limit_bytes=1 << 40, host_bytes=1 << 40, free_bytes=1 << 40, disk_bytes=1 << 40)
NO_MEMORY = RowMemoryLimits(limit_bytes=1 << 17, host_bytes=1 << 40, free_bytes=1 << 40, disk_bytes=1 << 40)
TABLES = """
create table kinds as
select i::int8 as id, i % 11 as small, (i * 7919 % 1000)::float8 / 7 as number, (i % 5)::real as r, i % 3 = 0 as flag,
       case when i % 13 > 0 then 'text ' || i % 7 end as t, date '2020-01-01' + i % 900 as d,
       timestamptz '2021-01-01 UTC' + i * interval '17 min' as at, array[i, i % 9, 5]::real[] as a,
       case when i > 6000 then array[i, 1]::int8[] end as late, case when i > 5000 then i % 17 end as gap,
       case when i % 19 > 0 then (i % 23)::float8 end as y, case when i % 19 > 0 then 'class ' || i % 3 end as c
  from generate_series(1, 9000) as i;
create table keyed as select * from kinds;
alter table keyed add primary key (id);
create table repeated as select small, number, gap, y from kinds, generate_series(1, 2) as copy where y is not null;
create table typed as
select i::int8 as id, i % 9 + 1 as skewed, exp(i % 11 - 5) as steep, (i % 83)::real as ranked, i * 7 % 31 as place,
       case when i % 8 > 0 then i % 5 * interval '1 day' end as span, time '00:00' + i % 97 * interval '9 min' as t,
       md5((i % 20)::text)::uuid as u, case when i % 12 > 0 then array['x' || i % 4, 'y' || i % 9, null] end as tags,
       array[i % 2 = 0, i % 3 = 0] as flags, case when i % 10 > 0 then 'word ' || i % 6 end as w,
       case when i % 14 > 0 then 'town ' || i % 40 end as town, case when i % 7 > 0 then 'street ' || i % 60 end as s,
       case when i % 16 > 0 then jsonb_build_object('a', jsonb_build_object('n', k % 13), 'b', k % 2 = 0,
         'l', jsonb_build_array('p' || k % 3), 'w', 'q' || k % 5, 't', date '2024-01-01' + k) end as doc,
       'house ' || i % 211 as house, i % 4 as weight,
       case when i % 19 > 0 then i * 31 % 101 / 3.0 end as y, case when i % 19 > 0 then 'class ' || i % 3 end as c
  from generate_series(1, 3000) as i, lateral (select i % 60 as k) as document;
create table graded as select * from typed;
create table written as
select i::int8 as id, case when i % 13 > 0 then 'Ticket ' || i || ' of ' || repeat('naïve café ', i % 5) end as body,
       case when i % 5 > 0 then 'team ' || i % 3 else '' end as team, i % 7 as place,
       case when i % 19 > 0 then 'class ' || i % 3 end as c
  from generate_series(1, 3000) as i;
grant select on kinds, keyed, repeated, typed, graded, written to tensile_reader;
analyze keyed, typed
"""
PATHS = {"a.n": "number", "b": "boolean", "l": "labels", "w": "text", "t": "time"}
WIDE = """
do $$begin
  execute 'create table wide as select ' || (select string_agg(format('(i * %s %% 91)::real as c%s', n, n), ', ')
                                               from generate_series(1, 1599) as n)
          || ', i % 7 as y from generate_series(1, 25) as i';
end$$;
grant select on wide to tensile_reader
"""
OPTIONS: dict[str, dict[str, Any]] = {
    "kinds": {"target": "y", "task": Task.REGRESSION, "exclude": ("c",), "preprocess": {"missing": "median"}},
    "keyed": {"target": "c", "task": Task.CLASSIFICATION, "exclude": ("y",), "split": {"last": 0.2, "by": "at"}},
    "repeated": {"target": "y", "task": Task.REGRESSION},
    "wide": {"target": "y", "task": Task.REGRESSION},
    "typed": {
        "target": "c",
        "task": Task.CLASSIFICATION,
        "exclude": ("y",),
        "split": {"group": "house"},
        "hyperparams": {"class_weight": "balanced", "weight": "weight"},
        "preprocess": {
            "scale": {"skewed": "log", "steep": "power", "ranked": "quantile", "doc.a.n": "quantile"},
            "encode": {"w": "ordinal", "town": "target", "s": "hash", "doc.w": "target"},
            "missing": {"w": "most_frequent", "span": "most_frequent", "t": "median", "doc.w": {"constant": "q1"}},
            "paths": {"doc": PATHS},
        },
    },
    "written": {
        "target": "c",
        "task": Task.CLASSIFICATION,
        "architecture": {"type": "wide_and_deep"},
        "preprocess": {"encode": {"body": "tokens", "team": "tokens"}, "missing": {"team": "most_frequent"}},
    },
    "graded": {
        "target": "y",
        "task": Task.REGRESSION,
        "exclude": ("c", "id"),
        "split": {"stratify": "place"},
        "hyperparams": {"weight": "weight"},
        "preprocess": {"scale": "quantile", "encode": "target", "missing": "most_frequent", "paths": {"doc": PATHS}},
    },
}


@pytest.fixture
def tables(database: Database) -> Database:
    with database.connect() as admin:
        if admin.execute("select to_regclass('kinds')").fetchone() == (None,):
            admin.execute(TABLES)
            admin.execute(WIDE)
    return database


def prepared(database: Database, table: str, memory: RowMemoryLimits, limits: ReadLimits) -> Prepared:
    with database.connect() as admin, database.connect("tensile_reader") as reader:
        spec = JobSpec(
            model="m", relation=relation(admin, table), **{"architecture": {"type": "auto"}, **OPTIONS[table]}
        )
        return prepare(reader, spec, limits=limits, memory=memory)


def bits(ready: Prepared) -> dict[str, Any]:
    """Return everything of a prepared training, and the order of its rows in two epochs."""
    parts = {name: getattr(ready, name) for name in ("train", "valid", "test")}
    return {
        "encoded": {
            name: tuple(own.numpy().tobytes() for own in (part.x, part.y, part.targets))
            for name, part in parts.items()
        },
        "encoded again": np.array_equal(ready.preprocessor.transform(ready.held_out), ready.test.unpacked[:]),
        "held out": {
            name: [
                None if gone else value
                for value, gone in zip(np.array(data.values[:]).tolist(), data.missing.tolist(), strict=True)
            ]
            for name, data in ready.held_out.items()
        },
        "preprocessor": ready.preprocessor.to_json(),
        "report": [fact.to_json() for fact in ready.report],
        "rest": (ready.data_digest, ready.membership, ready.unlabeled_rows, ready.architecture),
        "orders": [[rows.tolist() for rows in batches(ready.train, epoch, ready.settings)] for epoch in (0, 1)],
    }


def fed(ready: Prepared) -> list[bytes]:
    """Return the batches of an epoch as the training gets them."""
    train = ready.train
    sources = shuffling.row_sources(train, ready.settings.batch_size)
    orders = batches(train, 0, ready.settings)
    with BatchPrefetcher() as feed, closing(feed.batches((train.x, train.y), orders, sources)) as loaded:
        return [part.numpy().tobytes() for _, batch in loaded for part in batch]


DAILY = {  # each table, with or without blocks
    *(
        ("kinds", True),
        ("keyed", False),
        ("repeated", True),
        ("wide", False),
        ("typed", True),
        ("graded", True),
        ("written", False),
    )
}


@pytest.mark.by_day("kinds-", "keyed-", "written-")
@pytest.mark.parametrize(
    ("table", "small_blocks"), nightly_unless(lambda case: case in DAILY, product(OPTIONS, (False, True)))
)
def test_rows_in_a_file_give_the_bits_of_rows_in_memory(
    tables: Database, table: str, small_blocks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if small_blocks:
        for module in (moments, encoders, scalings, text_encoders, targets, column_facts, datareport):
            monkeypatch.setattr(module, "FIT_BLOCK_NUMBERS", 500)
        for module in (encoded_parts, row_weights):
            monkeypatch.setattr(module, "BLOCK_ROWS", 700)
        monkeypatch.setattr(documents, "_BLOCK_ROWS", 300)
        monkeypatch.setattr(encoders, "_SEPARATE_NUMBERS", 500)
        monkeypatch.setattr(splits, "_SORTED_ROWS", 256)
        monkeypatch.setattr(shuffling, "WINDOW_BYTES", 4096)
        monkeypatch.setattr(shuffling, "SHUFFLED_BLOCK_BYTES", 256)
    files: list[RowStorage] = []

    def overflow() -> RowStorage:
        files.append(FileStorage(tmp_path / "rows"))
        return files[-1]

    whole = prepared(tables, table, PLENTY, ReadLimits(overflow=overflow))
    expected = bits(whole)
    assert expected["encoded again"]
    assert not files
    expected_batches = fed(whole)
    # The first read starts in a file. The second one moves there in the middle, when the columns exceed the limit.
    for memory, size_bytes in ((NO_MEMORY, 1 << 40), (PLENTY, 100_000)):
        ready = prepared(tables, table, memory, ReadLimits(size_bytes=size_bytes, overflow=overflow))
        assert bits(ready) == expected
        assert fed(ready) == expected_batches
        assert ready.train.storage is files[-1]
    assert len(files) == 2
    assert list((tmp_path / "rows").iterdir()) == []  # the files have no names


def test_each_epoch_has_every_row_once_and_mixes_distant_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("WINDOW_BYTES", "SHUFFLED_BLOCK_BYTES"):
        monkeypatch.setattr(shuffling, limit, getattr(shuffling, limit) // 10)
    x = torch.arange(200_000, dtype=torch.float32).reshape(-1, 10) / 10
    y = torch.zeros(400_000, 1)
    part = Part(x=x.repeat(20, 1), y=y, targets=y)
    generator = torch.Generator().manual_seed(1)
    windows = list(shuffling.shuffled_windows(part, generator))
    assert len(windows) == 5
    assert torch.equal(torch.cat(windows).sort().values, torch.arange(400_000))
    first = windows[0][:1024]
    assert len(set((first // (shuffling.SHUFFLED_BLOCK_BYTES // 40)).tolist())) > 400  # a batch is from many blocks
    assert abs(float(first.double().mean()) / 200_000 - 1) < 0.1
    again = list(shuffling.shuffled_windows(part, torch.Generator().manual_seed(1)))
    assert all(torch.equal(left, right) for left, right in zip(windows, again, strict=True))


def test_a_cache_gives_the_rows_of_its_array(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path)
    array = storage.array(1000, (3,), np.float32)
    array.write(0, np.arange(3000, dtype=np.float32).reshape(-1, 3))
    cache, out = BlockCache(storage, array.values, block_rows=16, most=8), np.empty((40, 3), np.float32)
    draw = np.random.default_rng(4)
    for _ in range(50):
        blocks = draw.integers(0, 63, draw.integers(1, 9))
        order = np.minimum(draw.choice(blocks, 40) * 16 + draw.integers(0, 16, 40), 999)
        cache.take(order, out)
        assert np.array_equal(out, array.values[order])


def test_an_array_that_outgrows_its_range_moves_and_keeps_its_rows(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path)
    arrays = [storage.array(0, (2,), np.int32) for _ in range(3)]
    for start in range(0, 9000, 1000):
        for number, array in enumerate(arrays):
            array.resize(start + 1000)
            array.write(start, np.arange(2 * start, 2 * start + 2000).reshape(-1, 2) + number)
    for number, array in enumerate(arrays):
        assert np.array_equal(array.values, np.arange(18_000).reshape(-1, 2) + number)
    storage.read_ahead(arrays[1].values, [(0, 10), (8_990, 9_000)])
    storage.release()
    assert arrays[2].values[8999].tolist() == [18_000, 18_001]


def test_a_disk_that_is_full_or_a_directory_that_cannot_be_made_is_told_with_the_way_out(
    tables: Database, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    refused = ReadLimits(overflow=lambda: FileStorage(tmp_path / "file" / "rows"))
    with pytest.raises(RowFileError, match=r"file/rows .*cannot be used: Not a directory") as error:
        prepared(tables, "kinds", NO_MEMORY, refused)
    assert "TENSILE_ROWS_DIRECTORY" in error.value.hint
    small_disk = RowMemoryLimits(
        limit_bytes=1 << 20, host_bytes=1 << 40, free_bytes=1 << 40, disk_bytes=1 << 20, directory="/rows"
    )
    with pytest.raises(RowFileError, match=r"need about .* on the disk of /rows, and 1.0 MB are free"):
        prepared(tables, "kinds", small_disk, refused)


def test_a_write_that_fails_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    """The largest size of a file stands for a full disk: the kernel refuses the write in the same way."""
    gc.collect()
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    storage = FileStorage(tmp_path)
    array = storage.array(1 << 20, (), np.int64)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(RowFileError, match="cannot be written: File too large"):
            array.write(0, np.zeros(1 << 20, np.int64))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    del array, storage
    gc.collect()
    assert list(tmp_path.iterdir()) == []
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


def test_different_texts_that_exceed_the_limit_are_refused(tables: Database, tmp_path: Path) -> None:
    with tables.connect() as admin:
        admin.execute(
            "create table long_texts as select repeat(i::text, 40) as t, i % 9 as y from generate_series(1, 3000) i"
        )
        admin.execute("grant select on long_texts to tensile_reader")
        spec = JobSpec(
            model="m",
            relation=relation(admin, "long_texts"),
            target="y",
            task=Task.REGRESSION,
            architecture={"type": "auto"},
        )
    limits = ReadLimits(size_bytes=200_000, overflow=lambda: FileStorage(tmp_path))
    with tables.connect("tensile_reader") as reader, pytest.raises(DataError) as error:
        prepare(reader, spec, limits=limits)
    assert re.match(r"the different texts of table public.long_texts take more memory", error.value.message)
    assert re.match(r'Those of column "t" take the most: .* kB', error.value.detail)
    assert "exclude" in error.value.hint
    assert list(tmp_path.iterdir()) == []
    tokens = replace(spec, architecture={"type": "tabm"}, preprocess={"encode": "tokens"})
    with tables.connect("tensile_reader") as reader:
        ready = prepare(reader, tokens, limits=limits)
    assert isinstance(ready.held_out["t"].values, StoredTexts), "texts that are read as tokens take no memory"


def test_copies_for_fits_take_the_space_of_one(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path)
    kept = storage.array(1000, (), np.float64)
    kept.write(0, np.arange(1000.0))
    ends = set()
    for place in range(5):
        blocks = [np.full(50_000, float(place))]
        with moments.finite_values(partial(iter, blocks), storage) as values:
            values.sort()
            assert values[[0, -1]].tolist() == [place, place]
        ends.add(storage.reserve(0))
    assert len(ends) == 1
    assert kept.values.tolist() == list(range(1000))
