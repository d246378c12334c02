"""Check that the service reads every kind of large table with the rows and the order of the session's own reading."""

import pytest

from .sessions import ALL, Connection, alone, begun, rows

pytestmark = [pytest.mark.postgres, pytest.mark.nightly]  # several tables of 4 MB, and a service of its own

SOURCE = "select n as id, sin(n) as a, (array['red', 'blue', null])[n % 3 + 1] as b from generate_series(1, {}) as n"
PADDED = "repeat('x', 400)"
TABLES = {
    "many partitions": f"""create table s (id int primary key, a float8, b text, pad text) partition by range (id);
        do $$ begin for n in 0 .. 199 loop
          execute format('create table s_%s partition of s for values from (%s) to (%s)', n, n * 60, (n + 1) * 60);
        end loop; end $$;
        insert into s select *, {PADDED} from ({SOURCE.format(11999)}) as r""",
    "children": f"""create table s (id int primary key, a float8, b text);
        create table t (pad text, primary key (id)) inherits (s);
        insert into s {SOURCE.format(100)}; insert into t select *, {PADDED} from ({SOURCE.format(12000)}) as r
          where id > 100""",
    "dropped columns": f"""create table s (gone int, b text, also text, a float8, id int primary key, pad text);
        alter table s drop gone, drop also;
        insert into s select b, a, id, {PADDED} from ({SOURCE.format(12000)}) as r""",
    "values outside their rows": f"""create table s (id int primary key, a float8, b text);
        alter table s alter b set storage external;
        insert into s select id, a, repeat(b, 1000) from ({SOURCE.format(5000)}) as r""",
    "compressed values": f"""create table s (id int primary key, a float8, b text, pad text);
        alter table s alter pad set storage plain;
        insert into s select id, a, repeat(b, 1000), repeat('x', 1000) from ({SOURCE.format(5000)}) as r""",
    "deleted and updated rows": f"""create table s as select *, {PADDED} as pad from ({SOURCE.format(14000)}) as r;
        alter table s add primary key (id); delete from s where id % 5 = 0; update s set a = -a where id % 7 = 0""",
}
OWN = {
    "generated columns": f"""create table s (id int primary key, half float8, b text, pad text,
          a float8 generated always as (half * 2) stored);
        insert into s select id, a / 2, b, {PADDED} from ({SOURCE.format(12000)}) as r""",
    "a key that is no integer": f"""create table s (id numeric primary key, a float8, b text, pad text);
        insert into s select *, {PADDED} from ({SOURCE.format(12000)}) as r""",
    "a policy on a partition": f"""create table s (id int primary key, a float8, b text, pad text)
          partition by range (id);
        create table s_1 partition of s for values from (0) to (99999);
        insert into s select *, {PADDED} from ({SOURCE.format(12000)}) as r;
        alter table s_1 enable row level security""",
}


@pytest.mark.parametrize("kind", [*TABLES, *OWN])
def test_large_table_has_the_answers_of_its_rows_whoever_reads_it(demo: Connection, kind: str) -> None:
    demo.execute((TABLES | OWN)[kind].encode())
    demo.execute("grant select on all tables in schema public to tensile_reader")
    try:
        before = begun(demo)
        answers = rows(demo, ALL.format("s"))
        assert begun(demo) == before + (kind in TABLES)
        assert answers == alone(demo, ALL.format("s"))
        keys = "select jsonb_build_object('id', id) from s"
        assert sorted(str(key) for key, *_ in answers) == sorted(str(key) for (key,) in rows(demo, keys))
    finally:
        demo.execute("drop table s cascade")
