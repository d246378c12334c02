"""Fixtures of all modules of this folder: one database with large tables, a model, and one service."""

from collections.abc import Iterator

import pytest

from indb_tensile.cluster import Cluster
from tests.conftest import Database, fresh_database
from tests.service.conftest import Forks, Published, Service, publish, registered_service

from .sessions import Connection

# Tables of more than 4 MB. Of `wide` more is read than the service keeps in memory.
TABLES = """
create type tint as enum ('red', 'blue');
create domain measure as double precision;
create table flowers (id bigint primary key, a measure, b text, target text);
insert into flowers
select n, sin(n), (array['red', 'blue'])[n % 2 + 1], (array['p', 'q'])[n % 2 + 1] from generate_series(1, 60) as n;
grant select on flowers to tensile_reader;
create table large (id bigint primary key, a measure, b text, pad text);
alter table large alter column pad set storage plain;
insert into large select n, nullif(sin(n), sin(7)), (array['red', 'blue', null])[n % 3 + 1], repeat('x', 500)
  from generate_series(1, 9000) as n;
delete from large where id % 1000 = 0;
create table parted (id int, part int, a float4, b text, pad text, primary key (id, part)) partition by list (part);
create table parted_one partition of parted for values in (1);
create table parted_two (pad text, part int not null, b text, a float4, id int not null);
alter table parted_one alter column pad set storage plain;
alter table parted_two alter column pad set storage plain;
alter table parted attach partition parted_two for values in (2);
insert into parted select n, n % 2 + 1, cos(n), 'red', repeat('x', 2000) from generate_series(1, 2200) as n;
create table coloured (id int primary key, a float8, b tint, pad text);
alter table coloured alter column pad set storage plain;
insert into coloured select n, n, 'red', repeat('x', 2000) from generate_series(1, 2100) as n;
create table wide (id int primary key, a float8, b text);
alter table wide alter column b set storage plain;
insert into wide select n, n, repeat(chr(97 + n % 3), 2000) from generate_series(1, 12000) as n;
create table secured (like large including all);
insert into secured select * from large;
alter table secured enable row level security;
create table ungranted (like large including all);
insert into ungranted select * from large;
grant select on large, wide, parted, parted_one, parted_two, coloured, secured to tensile_reader;
create view seen as select * from large;
create table other (id int);
"""


@pytest.fixture(scope="package")
def database(cluster: Cluster, template: str) -> Iterator[Database]:
    with fresh_database(cluster, template) as database:
        yield database


@pytest.fixture(scope="package")
def _service(database: Database, forks: Forks) -> Iterator[Service]:
    with registered_service(database, forks) as service:
        yield service


@pytest.fixture(scope="package")
def model(database: Database) -> Published:
    with database.connect(user="demo") as demo:
        demo.execute(TABLES.encode())
    return publish(database, "flowers", "flowers", ", target => 'target'")


@pytest.fixture
def demo(database: Database, service: Service, model: Published) -> Iterator[Connection]:
    with database.connect(user="demo") as connection:
        yield connection
