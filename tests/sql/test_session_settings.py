"""Check that no setting of a session changes a prediction's or evaluation's request, or a training's NOTICEs."""

from typing import Any

import pytest

from tests.conftest import Database

from .conftest import Connection, Serve, refused, value
from .fakes import result

pytestmark = pytest.mark.postgres

TABLE = """
create type mood as enum ('sad', 'glad', 'so so');
create domain share as numeric(20, 15);
create table mixed (
  at interval, single real, twice double precision, exact numeric, part share, whole bigint, yes boolean,
  word text, fixed char(6), feeling mood, day date, moment timestamp, instant timestamptz, singles real[],
  exacts numeric[], y double precision, span interval, bytes bytea, species text);
insert into mixed
select i * interval '1 day 02:03:04.5', (sin(i) * 1000)::real, cos(i) * 1e-7, 1.0 / i, 1.0 / i, i * 1234567890123,
       i % 2 = 0, (interval '1 day' * (i % 3))::text, 'w' || i % 4,
       (enum_range(null::mood))[1 + i % 3], date '1999-12-01' + 37 * i,
       timestamp '2001-02-03 04:05:06.789012' + i * interval '3 days 01:02:03.000004',
       timestamptz '2001-02-03 04:05:06.789012+00' + i * interval '3 days 01:02:03.000004',
       array[sin(i), cos(i) / 3]::real[], array[1.0 / i, i / 7.0], sin(i) + cos(i),
       i * interval '1 mon 2 days -03:04:05', decode(lpad(to_hex(i), 8, 'f'), 'hex'), 's' || i % 2
  from generate_series(1, 30) as i;
insert into mixed (at, single, twice, exact, y, bytes, species)
values ('-3 years', 'NaN', '-Infinity', '1e400', 0.1, '\\xff00', 's1');
grant select on mixed to tensile_reader;
create view seen as select * from mixed;
create table guarded as table mixed;
alter table guarded add primary key (at, bytes), enable row level security, force row level security;
create policy everybody on guarded using (true);
"""
SETTINGS = (
    "set extra_float_digits = -15",
    "set extra_float_digits = -10",
    "set extra_float_digits = 0",
    "set extra_float_digits = 3",
    "set datestyle = 'German, DMY'",
    "set datestyle = 'SQL, MDY'",
    "set datestyle = 'Postgres, YMD'",
    "set intervalstyle = 'iso_8601'",
    "set intervalstyle = 'sql_standard'",
    "set intervalstyle = 'postgres_verbose'",
    "set time zone 'Asia/Kathmandu'",
    "set time zone 'America/St_Johns'",
    "set time zone interval '-15:59' hour to minute",
    "set bytea_output = 'escape'",
    "set lc_monetary = 'C.UTF-8'; set lc_numeric = 'C.UTF-8'; set lc_time = 'C.UTF-8'",
    "set xmloption = 'document'; set xmlbinary = 'hex'",
    "set client_encoding = 'LATIN1'",
    "set client_encoding = 'SQL_ASCII'",
    "set standard_conforming_strings = off; set backslash_quote = off; set escape_string_warning = off",
    "set array_nulls = off; set quote_all_identifiers = on; set transform_null_equals = on",
    "set search_path = pg_catalog",
    "set jit = off",
    "set force_parallel_mode = on; set parallel_setup_cost = 0; set min_parallel_table_scan_size = 0",
    "set enable_seqscan = off; set work_mem = '64kB'; set enable_hashagg = off; set enable_sort = off",
    "set plan_cache_mode = force_generic_plan; set row_security = on; set check_function_bodies = off",
    "set default_transaction_isolation = 'repeatable read'",
    "set default_transaction_isolation = 'serializable'; set default_transaction_read_only = on",
    "set statement_timeout = '10min'; set lock_timeout = '5min'; set client_min_messages = 'debug1'",
    "set constraint_exclusion = on; set cursor_tuple_fraction = 1; set from_collapse_limit = 1",
    "set synchronize_seqscans = off; set temp_buffers = 100; set vacuum_cost_delay = 10",
    "set default_tablespace = ''; set default_toast_compression = 'pglz'; set gin_fuzzy_search_limit = 1",
)
ROW = """single, twice, exact, part, whole, yes, word, fixed, feeling, day, moment, instant, singles, exacts, span,
         bytes"""
STATEMENTS = (
    "select public.tensile_predict('flowers', m) from public.mixed as m",
    "select public.tensile_predict('flowers', m.*) from public.seen as m",
    f"select public.tensile_predict('flowers', row({ROW})) from public.mixed",
    "select public.tensile_predict('flowers', single) from public.mixed",
    "select public.tensile_predict('flowers', instant) from public.mixed",
    "select public.tensile_predict('flowers', span) from public.mixed",
    "select public.tensile_predict('flowers', singles) from public.mixed",
    "select public.tensile_predict('flowers', pg_catalog.to_jsonb(word)) from public.mixed",
    "select public.tensile_predict_batch('flowers', pg_catalog.array_agg(m)) from public.mixed as m",
    f"""select public.tensile_predict_batch('flowers', pg_catalog.array_agg(x))
          from (select {ROW} from public.mixed) as x""",
    """select public.tensile_predict_batch('flowers', pg_catalog.array_agg(singles))
         from public.mixed where singles is not null""",
    "select public.tensile_predict_batch('flowers', pg_catalog.array_agg(instant)) from public.mixed",
    "select * from public.tensile_evaluate('flowers', 'public.mixed')",
    "select * from public.tensile_evaluate('flowers', 'public.seen')",
    "select * from public.tensile_explain('new', 'public.mixed', target => 'species', features => '{single}')",
    "select * from public.tensile_explain('new', 'public.seen', target => 'species', features => '{single}')",
)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    if request["verb"] == "evaluate":
        return result({"metrics": {"accuracy": 1 / 3}})
    if request["verb"] == "explain":
        return result({"rows": []})
    return result({"values": [1 / 3] * len(request["rows"])})


@pytest.mark.usefixtures("published")
@pytest.mark.nightly  # takes minutes, because it runs each statement with each setting
def test_session_settings_change_no_request_or_notice(alice: Connection, database: Database, serve: Serve) -> None:
    service = serve(answer)
    alice.execute(TABLE)
    expected = None
    for settings in ("", *SETTINGS):
        service.requests.clear()
        notices: list[str] = []
        with database.connect("alice") as session:
            session.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))  # noqa: B023
            session.execute(settings.encode())
            for statement in STATEMENTS:
                session.execute(statement.encode())
        for request in service.requests:
            request.pop("evaluation", None)
        sent = (service.requests[:], [notice for notice in notices if "column" in notice or "target" in notice])
        expected = expected or sent
        assert sent == expected, settings
    assert expected is not None
    assert len(expected[0]) > 8 * 30
    assert expected[0][0]["rows"][0]["instant"] == "2001-02-06T05:07:09.789016+00:00"


@pytest.mark.nightly
def test_session_settings_change_no_key_of_a_snapshot(alice: Connection, admin: Connection) -> None:
    alice.execute(TABLE)
    digests = set()
    for settings in ("", *(setting for setting in SETTINGS if "read_only" not in setting)):
        with alice.transaction():
            alice.execute(settings.replace("set ", "set local ").encode())
            job = value(
                alice, "select public.tensile_train('keys', 'public.guarded', target => 'y', exclude => '{span}')"
            )
        keys = "select md5(string_agg(concat(s.at, s.bytes), ',' order by s.at)) from tensile_data.job_{} as s"
        digests.add(value(admin, keys.format(job)))
        alice.execute("select tensile_cancel(%s)", (job,))
    assert len(digests) == 1


def test_target_values_that_differ_in_their_last_digits_count_as_different(alice: Connection) -> None:
    alice.execute(
        """create table close as select i as a, (1000000 + i / 16.0)::float4 as y from generate_series(1, 50) as i;
           create table alike as select i as a, 0.1::float4 as y from generate_series(1, 50) as i;
           grant select on close, alike to tensile_reader;
           set extra_float_digits = -15"""
    )

    assert value(alice, "select tensile_train('close', 'close')")
    error = refused(alice, "select tensile_train('alike', 'alike')")
    assert error.message == 'target "y" of table "public.alike" is 0.1 in every row'


@pytest.mark.usefixtures("published")
def test_long_text_is_sent_in_every_client_encoding(alice: Connection, serve: Serve) -> None:
    service = serve(answer)
    alice.execute("create table words as select 'a' as species, repeat('\u0436\u20ac', 20000) as note")
    alice.execute("set client_encoding = 'LATIN1'")

    value(alice, "select tensile_predict('flowers', w) from words as w")
    value(alice, "select tensile_evaluate('flowers', 'words')")

    assert [request["rows"][0]["note"] for request in service.requests] == ["\u0436\u20ac" * 20000] * 2
