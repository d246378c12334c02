"""Check which splits by time and by a column `tensile_train` accepts, and its NOTICEs about doubtful columns."""

from typing import Any

import pytest

from .conftest import Connection, Refused, refused, value

pytestmark = [pytest.mark.postgres, pytest.mark.clears_database]


@pytest.fixture
def orders(alice: Connection) -> Connection:
    """Alice's table `orders`: rows in order of time, ids without a primary key, and columns for a split. The table
    `visits` has a second timestamp.
    """
    alice.execute(
        """create table orders as
             select i as id, timestamptz '2024-01-01' + i * interval '1 hour' as created_at, i % 6 = 0 as is_test,
                    case i % 6 when 0 then 'test' when 1 then 'valid' else 'train' end as part,
                    (i * 7) % 31 as amount, (i * 11) % 13 as other, (i * 37 % 101) / 3.0 as price
               from generate_series(1, 300) as i;
           create table visits as select o.*, created_at + interval '1 day' as shipped_at from orders as o;
           grant select on orders, visits to tensile_reader"""
    )
    return alice


def enqueue(
    connection: Connection, arguments: str = "", relation: str = "orders"
) -> tuple[dict[str, Any], list[str]]:
    """Enqueue a training; return its specification and its NOTICEs."""
    notices: list[str] = []

    def collect(notice: Any) -> None:
        notices.append(notice.message_primary or "")

    connection.add_notice_handler(collect)
    suffix = f", {arguments}" if arguments else ""
    job = value(connection, f"select tensile_train('m', '{relation}', 'price'{suffix})")
    connection.remove_notice_handler(collect)
    spec: dict[str, Any] = value(connection, "select spec from tensile.jobs where job_id = %s", job)
    return spec, notices


def test_split_by_time_leaves_its_column_out_of_the_features(orders: Connection) -> None:
    spec, notices = enqueue(orders, """split => '{"last": 0.2, "by": "created_at"}'""")

    assert spec["split"] == {"last": 0.2, "by": "created_at"}
    assert (
        "left out of the features, as the split is by it: created_at (name it in features => array[...] to learn "
        "from it)"
    ) in notices
    assert not [message for message in notices if "orders the rows in time" in message]


def test_split_by_time_uses_the_only_date_or_timestamp(orders: Connection) -> None:
    spec, notices = enqueue(orders, """split => '{"last": 0.2}'""")

    assert spec["split"] == {"last": 0.2, "by": "created_at"}
    assert 'split is by "created_at", the only date or timestamp of table "public.orders"' in notices


def test_split_by_a_column_is_enqueued(orders: Connection) -> None:
    assert enqueue(orders, """split => '{"column": "is_test"}'""")[0]["split"] == {"column": "is_test"}
    assert enqueue(orders, """split => '{"column": "part", "seed": 3}'""")[0]["split"] == {
        "column": "part",
        "seed": 3,
    }


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            """split => '{"last": 0.2}'""",
            Refused(
                "22023",
                'split: "last" is given without "by", the column that orders the rows',
                'table "public.visits" has the dates and timestamps created_at, shipped_at.',
                """Name one: split => '{"last": 0.2, "by": "created_at"}'.""",
            ),
        ),
        (
            """split => '{"last": 0.2, "by": "creation"}'""",
            Refused(
                "42703",
                'column "creation" of relation "public.visits" does not exist',
                "It is named in split.",
                "The columns are id, created_at, is_test, part, amount, other, price, shipped_at.",
            ),
        ),
        (
            """split => '{"last": 0.2, "by": "part"}'""",
            Refused(
                "22023",
                'split: column "part" of table "public.visits" has type text, which "by" cannot be',
                None,
                "Name a date, timestamp or numeric column, by which the rows are in order.",
            ),
        ),
        (
            """split => '{"column": "amount"}'""",
            Refused(
                "22023",
                'split: column "amount" of table "public.visits" has type integer, which "column" cannot be',
                None,
                "Name a boolean column, true for rows that test, or a text column of 'train', 'valid' and 'test'.",
            ),
        ),
        (
            """split => '{"column": "is_test", "last": 0.2}'""",
            Refused("22023", 'split: "column" and "last" contradict each other', None, "Leave one of them out."),
        ),
        (
            """split => '{"by": "created_at"}'""",
            Refused(
                "22023",
                'split: "by" is given without "last"',
                None,
                """Give the share of the rows that test, as in {"last": 0.2, "by": "created_at"}.""",
            ),
        ),
        (
            """split => '{"last": 0.9, "by": "created_at"}'""",
            Refused(
                "22023",
                "split: last 0.9 and valid_size 0.15 leave no rows to train on",
                None,
                "Keep their sum below 1.",
            ),
        ),
        (
            """split => '{"last": 0.2, "by": "price"}'""",
            Refused("22023", 'split: column "price" is the target', None, "Name another column."),
        ),
        (
            """split => '{"column": "is_test"}', features => array['amount', 'is_test']""",
            Refused(
                "22023", '"is_test" says which rows test, and is also a feature', None, "Leave it out of features."
            ),
        ),
    ],
)
def test_invalid_split_is_refused(orders: Connection, arguments: str, error: Refused) -> None:
    assert refused(orders, f"select tensile_train('m', 'visits', 'price', {arguments})") == error


@pytest.mark.parametrize(
    ("change", "column", "message"),
    [
        ("is_test = null where id < 4", "is_test", "is NULL in 3 of its first 300 rows with a target"),
        ("part = 'Test' where id < 4", "part", "is neither train, valid nor test in 3 of its first 300 rows"),
        ("is_test = false", "is_test", "names no row of the test part"),
    ],
)
def test_rows_without_a_part_are_refused_with_their_number(
    orders: Connection, change: str, column: str, message: str
) -> None:
    orders.execute(f"update orders set {change}".encode())
    statement = f"""select tensile_train('m', 'orders', 'price', split => '{{"column": "{column}"}}')"""
    error = refused(orders, statement)
    assert (error.sqlstate, error.message) == (
        "22000",
        f'split: column "{column}" of table "public.orders" {message}',
    )


def test_split_is_inherited_and_its_column_must_exist(orders: Connection, admin: Connection) -> None:
    enqueue(orders, """split => '{"last": 0.2, "by": "created_at"}'""")
    admin.execute(
        "update tensile.models set last_spec = (select spec from tensile.jobs order by job_id desc limit 1)"
    )

    assert enqueue(orders)[0]["split"] == {"last": 0.2, "by": "created_at"}
    orders.execute("alter table orders rename column created_at to made_at")
    error = refused(orders, "select tensile_train('m', 'orders', 'price')")

    assert error.message == 'column "created_at" of relation "public.orders" does not exist'
    assert error.detail == "It is named in the split of the model's last run, as no split is given."
    assert (error.hint or "").startswith("Give another split, such as split => '{}'.")
    assert enqueue(orders, "split => '{}'")[0]["split"] == {}


def test_notice_names_a_column_that_looks_like_a_key(orders: Connection) -> None:
    notices = enqueue(orders)[1]

    assert (
        "features that look like keys, with a different value in each of 300 rows: id (leave them out with "
        "exclude => array['id'])"
    ) in notices
    assert (
        '"created_at" orders the rows in time, and a random split tests between rows that it trains on (to test on '
        """the latest rows: split => '{"last": 0.15, "by": "created_at"}')"""
    ) in notices
    assert not [message for message in enqueue(orders, "features => array['id', 'amount']")[1] if "keys" in message]


def test_notice_names_a_column_that_determines_the_target(orders: Connection) -> None:
    orders.execute("create table graded as select *, price > 16 as dear, round(price * 100) as cents from orders")
    orders.execute("grant select on graded to tensile_reader")
    notices = enqueue(orders, "exclude => array['id', 'created_at']", relation="graded")[1]
    assert (
        'features that reveal target "price" in 300 rows: cents (leave them out with exclude => '
        "array['id', 'created_at', 'cents'], unless their values are available at prediction time)"
    ) in notices


def test_numeric_beyond_double_precision_is_left_to_the_job(orders: Connection) -> None:
    orders.execute("alter table orders alter amount type numeric; update orders set amount = '1e400' where id = 3")
    assert enqueue(orders)[0]["target"] == "price"


def test_snapshot_contains_the_column_of_the_split(orders: Connection, admin: Connection) -> None:
    orders.execute("create view recent as select * from orders")
    spec, _ = enqueue(orders, """split => '{"column": "is_test"}', features => array['amount']""", relation="recent")
    assert spec["features"] == ["amount"]
    columns = value(
        admin,
        """select array_agg(a.attname::text order by a.attname) from pg_attribute as a
            join tensile.snapshots as s on a.attrelid = format('tensile_data.%I', s.table_name)::regclass
           where a.attnum > 0 and not a.attisdropped""",
    )
    assert columns == ["amount", "is_test", "price"]
