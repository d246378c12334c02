"""Check with a real controller that a model learns from images of bytea, and predicts by every function alike."""

import os
import signal
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest
from PIL import Image

from tests.e2e.conftest import Service
from tests.e2e.trainings import (
    check_killed_without_fault,
    check_same_bits_after_a_kill,
    child_pids,
    wait_until_training,
    weights,
)
from tests.learning import pictures

pytestmark = pytest.mark.postgres

TABLE = """
create table if not exists photos (id integer primary key, photo bytea, weight real, corner text);
grant select on photos to tensile_reader"""
BROKEN = {5: b"%PDF-1.7", 11: pictures.png_of_size(60000, 60000), 17: pictures.encoded(pictures.square(1))[:40]}
TRAIN = """select tensile_train('corners', 'photos', 'corner', features => array['photo'],
  hyperparams => '{"epochs": 12, "batch_size": 16, "augment_shift": 0.1}'"""
SKIP = """, preprocess => '{"on_error": "skip"}'"""


def photo(row: int) -> bytes:
    """Return the image of a row: every seventh one is stored on its side, with an orientation in its EXIF."""
    image = pictures.square(row, 16, 120 + row % 100)
    if row % 7:
        return pictures.encoded(image)
    exif = Image.Exif()
    exif[0x0112] = 6
    return pictures.encoded(image.rotate(90), "PNG", exif=exif)


@pytest.fixture
def demo(running: Service) -> Iterator[psycopg.Connection]:
    with running.database.connect("demo") as connection:
        connection.execute(TABLE.encode())
        connection.execute("truncate photos")
        rows = [(row, BROKEN.get(row, photo(row)), row / 10, f"corner {row % 4}") for row in range(160)]
        connection.cursor().executemany("insert into photos values (%s, %s, %s, %s)", rows)
        yield connection


@pytest.mark.nightly
def test_a_model_of_images_trains_beside_broken_ones_and_predicts_in_every_way(
    running: Service, demo: psycopg.Connection
) -> None:
    def rows(statement: str) -> list[tuple[Any, ...]]:
        return demo.execute(statement.encode()).fetchall()

    assert rows(TRAIN.replace("tensile_train", "count(*) from tensile_explain") + ")")[0][0]
    stopped, job = (rows(statement)[0][0] for statement in (TRAIN + ")", TRAIN + SKIP + ")"))
    assert running.until_ended(stopped, job) == ["failed", "succeeded"], running.log.read_text()
    assert rows(f"select error_message from tensile.jobs where job_id = {stopped}") == [
        (
            'column "photo", id 5: the value starts with 25 50 44 46, which is no image of PNG, JPEG, WebP, BMP, '
            "GIF, TIFF",
        )
    ]
    ((warning,), *_) = rows(
        f"select detail ->> 'message' from tensile.job_events where job_id = {job} and kind = 'warning'"
    )
    assert warning.startswith('3 rows are left out, as their image in column "photo" cannot be read: id 5 starts')
    assert rows("select metric from tensile_training_info('corners')") == [(1.0,)]
    assert rows("select architecture ->> 'type' from tensile_training_info('corners')") == [("cnn",)]

    single = rows("select tensile_predict_label('corners', p) from photos as p order by id")
    whole = rows("select label from tensile_predict_table('corners', 'photos') order by (key ->> 'id')::int")
    assert single == whole
    assert [row for row, (label,) in enumerate(whole) if label is None] == sorted(BROKEN)
    embedded = rows("select embedding from tensile_embed_table('corners', 'photos') order by (key ->> 'id')::int")
    assert [row for row, (own,) in enumerate(embedded) if own is None] == sorted(BROKEN)
    assert rows("select tensile_embed('corners', p) is null from photos as p where id in (4, 5) order by id") == [
        (False,),
        (True,),
    ]
    batch = "select tensile_predict_batch_label('corners', array_agg(photo order by id)) from photos"
    assert [(label,) for label in rows(batch)[0][0]] == whole
    into = rows("select tensile_predict_into('corners', 'photos', 'cornered', with_probabilities => true)")[0][0]
    assert running.until_ended(into) == ["succeeded"], running.log.read_text()
    assert rows("select label from cornered order by id") == whole
    assert rows("select count(*) from cornered where probabilities is null") == [(3,)]
    metrics = dict(rows("select metric, value from tensile_evaluate('corners', 'photos')"))
    assert metrics["accuracy"] > 0.95
    added = rows("select feature from photos as p, tensile_explain_prediction('corners', p) where id = 1")
    assert added == [("photo",)]
    demo.execute("drop view cornered")


@pytest.mark.nightly
def test_a_training_on_changed_images_survives_a_kill_bit_for_bit(running: Service, demo: psycopg.Connection) -> None:
    changes = '"augment_shift": 0.1, "augment_rotation": 10, "augment_flip": true'
    options = f"""select tensile_train('NAME', 'photos', 'corner', features => array['photo', 'weight'],
      preprocess => '{{"on_error": "skip", "size": [24, 24]}}',
      hyperparams => '{{"epochs": 40, "batch_size": 16, {changes}}}')"""
    calm, killed = (
        demo.execute(options.replace("NAME", name).encode()).fetchall()[0][0]
        for name in ("calm_images", "killed_images")
    )
    phase = "select phase::text from tensile.jobs where job_id = %s"
    running.until(lambda: running.value(phase, killed) == "training", "the training to begin")
    for trainer in child_pids(running, "tensile trainer"):
        os.kill(trainer, signal.SIGKILL)
    assert running.until_ended(calm, killed) == ["succeeded"] * 2, running.log.read_text()
    check_killed_without_fault(running, killed)
    assert weights(running, calm) == weights(running, killed)
    explained = "select feature from photos as p, tensile_explain_prediction('calm_images', p) where id = 1"
    assert sorted(demo.execute(explained.encode()).fetchall()) == [("photo",), ("weight",)]
    encoder = "select architecture ->> 'image_encoder' from tensile_training_info('calm_images')"
    assert demo.execute(encoder.encode()).fetchall() == [("resnet",)]


PENDING_ROWS = 600  # of which some 420 train, more than the 256 that are decoded before the first step


def insert_many(connection: psycopg.Connection, broken: Sequence[int] = ()) -> None:
    """Fill the table with more images than are decoded before a training begins, some of them broken."""
    connection.execute("truncate photos")
    with connection.cursor().copy("copy photos from stdin (format binary)") as copy:
        copy.set_types(["int4", "bytea", "float4", "text"])
        for row in range(PENDING_ROWS):
            copy.write_row((row, BROKEN[17] if row in broken else photo(row), row / 10, f"corner {row % 4}"))


def late_rows(connection: psycopg.Connection, model: str) -> list[int]:
    """Return rows that the last version of a model has tested, which are decoded last."""
    tested = f"select (key ->> 'id')::int from tensile_split('{model}') where part = 'test' order by 1"
    return [row for (row,) in connection.execute(tested.encode()).fetchall()]


@pytest.mark.nightly
def test_images_that_are_decoded_while_it_trains_survive_a_kill_bit_for_bit_and_a_broken_one_ends_the_job(
    running: Service, demo: psycopg.Connection
) -> None:
    insert_many(demo)
    options = TRAIN.replace("'corners'", "'NAME'").replace('"epochs": 12', '"epochs": 30') + ")"
    calm, killed = (
        demo.execute(options.replace("NAME", name).encode()).fetchall()[0][0] for name in ("calm_many", "killed_many")
    )
    check_same_bits_after_a_kill(running, calm, killed)

    low, *_, high = late_rows(demo, "calm_many")
    insert_many(demo, (low, high))
    stopped = demo.execute(options.replace("NAME", "stopped_many").encode()).fetchall()[0][0]
    assert running.until_ended(stopped) == ["failed"]
    ended = "select attempt, error_message, error_detail from tensile.jobs where job_id = %s"
    (attempt, message, detail), *_ = demo.execute(ended.encode(), (stopped,)).fetchall()
    assert attempt == 1
    assert message.startswith(f'column "photo", id {low}: the value is a broken PNG image')
    assert f"2 rows have such values; the next are: id {high} is a broken PNG image" in detail


@pytest.mark.nightly
def test_a_training_on_mixed_images_has_the_same_bits_after_a_kill_a_pause_and_in_parts(
    running: Service, demo: psycopg.Connection
) -> None:
    options = """select tensile_train('NAME', 'photos', 'corner', features => array['photo'],
      preprocess => '{"on_error": "skip", "size": [24, 24]}', architecture => '{"type": "vit", "patch": 6}',
      hyperparams => '{"epochs": 40, "batch_size": 16, "micro_batch_size": 4, "mixup": 0.4, "augment_shift": 0.1,
                       "class_weight": "balanced", "label_smoothing": 0.1}')"""

    def enqueued(name: str) -> int:
        return int(demo.execute(options.replace("NAME", name).encode()).fetchall()[0][0])

    calm, paused, killed = map(enqueued, ("calm_mixture", "paused_mixture", "killed_mixture"))
    wait_until_training(running, paused, 2)
    demo.execute("select tensile_pause(%s)", (paused,))
    phase = "select phase::text from tensile.jobs where job_id = %s"
    running.until(lambda: running.value(phase, paused) == "paused", "the job to pause")
    wait_until_training(running, killed, 2)
    for trainer in child_pids(running, "tensile trainer"):
        os.kill(trainer, signal.SIGKILL)
    demo.execute("select tensile_resume(%s)", (paused,))
    assert running.until_ended(calm, paused, killed) == ["succeeded"] * 3, running.log.read_text()
    check_killed_without_fault(running, killed)
    assert weights(running, calm) == weights(running, paused) == weights(running, killed)
    losses = "select value from tensile.metrics where job_id = %s and name = 'valid_loss' order by epoch"
    first, *_, last = running.connection.execute(losses, (calm,)).fetchall()
    assert last < first
    classes = "select count(*) from photos as p where tensile_predict_label('calm_mixture', p) = corner"
    assert demo.execute(classes.encode()).fetchall()[0][0] > 120
