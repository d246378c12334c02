"""The SQL of the user's manual runs as it is written."""

import re
from collections.abc import Iterator

import psycopg
import pytest

from indb_tensile.catalog.pgml_schema import install_pgml
from indb_tensile.cluster import Cluster
from tests.conftest import Database, fresh_database
from tests.docs.pages import ROOT, Block, Page
from tests.docs.sessions import Piece, pieces, run, run_session, typed
from tests.e2e.conftest import Service, service_on

pytestmark = pytest.mark.postgres

# docs/user/howto.md has its own test, which checks the effect of its statements.
NAMES = ["README.md", *(f"docs/user/{path.name}" for path in sorted((ROOT / "docs" / "user").glob("*.md")))]
PAGES = [Page(ROOT / name) for name in NAMES if not name.endswith("howto.md")]
WITH_SQL = [page for page in PAGES if list(pieces(page))]
SCHEMA = """
create schema demo authorization demo;
grant usage on schema demo to tensile_reader;
alter role demo in database {database} set search_path = demo, public;
"""
# Trainings of the pages have default settings, with which some take many epochs. What the pages show needs few.
FEW_EPOCHS = """
create function tensile.take_few_epochs() returns trigger language plpgsql as $$
begin
  new.spec := jsonb_set(new.spec, '{hyperparams, epochs}', '3');
  return new;
end $$;
create trigger take_few_epochs before insert on tensile.jobs for each row
  when (not new.spec ? 'search' and coalesce((new.spec #>> '{hyperparams, epochs}')::int > 3, true)
        and new.spec ? 'hyperparams') execute function tensile.take_few_epochs();
"""
SMALL = """
set client_min_messages = warning;
select tensile_load_dataset('digits');
select tensile_load_dataset('breast_cancer');
select tensile_load_dataset('diabetes');
select tensile_create_model('digits', '{"type": "mlp", "hidden": [16]}', '{"epochs": 2}');
"""


@pytest.fixture(scope="module")
def trained(cluster: Cluster, template: str) -> Iterator[Service]:
    """Start a controller on a database with the sample tables of the pages and two versions of a model."""
    with fresh_database(cluster, template) as database, service_on(database) as service:
        service.settings |= {"TENSILE_CAPACITY_BYTES": str(256 << 20)}
        service.connection.execute(SCHEMA.format(database=database.name).encode())
        service.connection.execute(FEW_EPOCHS)
        with database.connect() as connection:
            install_pgml(connection)  # of the page for users of PostgresML
        service.start()
        with database.connect("demo") as demo:
            for statement in SMALL.strip().splitlines():
                demo.execute(statement.encode())
            for _version in range(2):
                row = demo.execute("select tensile_train('digits', 'digits', deploy => 'always')").fetchone()
                assert row is not None
                assert service.until_ended(row[0]) == ["succeeded"]
        yield service


# The pages that train most, and pages of one subject each, which has tests of its own by day. By day README.md runs,
# and of the manual the first five minutes and the predictions. The page of functions trains twenty times: by day its
# calls are only resolved, and each function has tests of its own in tests/sql.
_LONG = "anomalies forecasting from-madlib from-postgresml functions networks pairs search training"
LONG = {f"docs/user/{name}.md" for name in _LONG.split()}


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=(pytest.mark.nightly,) if page.name in LONG else ())
        for page in WITH_SQL
    ],
)
def test_the_statements_of_a_page_run_as_written(page: Page, trained: Service) -> None:
    run(page, trained.database)
    # Nothing waits for these trainings, and with default settings each has many epochs.
    trained.connection.execute("update tensile.jobs set cancel_requested = true where finished_at is null")


def test_the_examples_of_the_functions_name_functions_and_arguments_that_exist(trained: Service) -> None:
    page = Page(ROOT / "docs" / "user" / "functions.md")
    faults, resolved = [], 0
    with trained.database.connect("demo") as demo:
        for piece in pieces(page):
            for statement in re.split(r";\s*$", piece.text, flags=re.MULTILINE):
                words = re.sub(r"(^|\n)--.*", "", statement).strip()
                if not words.startswith(("select", "with", "call")):
                    continue
                try:  # a procedure is found like a function, and then refused
                    demo.execute(f"prepare example as {re.sub('^call', 'select', words)}".encode())
                    demo.execute("deallocate example")
                except psycopg.errors.WrongObjectType:
                    assert words.startswith("call")
                except psycopg.errors.UndefinedTable:  # an earlier example creates it
                    continue
                except psycopg.Error as error:
                    faults.append(f"line {piece.line}: {error}")
                resolved += 1
    assert faults == []
    assert resolved > 120


def test_every_function_has_a_section_with_its_arguments_and_an_example(database: Database) -> None:
    page = Page(ROOT / "docs" / "user" / "functions.md")
    text = page.path.read_text(encoding="utf-8")
    with database.connect() as connection:
        functions = connection.execute(
            "select proname, proargnames[1:pronargs] from pg_proc where pronamespace = 'public'::regnamespace "
            "and proname like 'tensile\\_%' order by proname"
        ).fetchall()
    shared = _section(text, "Arguments of a training")
    faults = []
    for name, arguments in functions:
        section = _section(text, name)
        if f"{name}(" not in section or ("```sql" not in section and "```psql" not in section):
            faults.append(f"{name} has no section with an example")
        named = section + (shared if "#arguments-of-a-training" in section else "")
        faults += [
            f"{name}: {argument} is not explained" for argument in arguments or () if f"`{argument}`" not in named
        ]
    assert faults == []


def test_every_view_has_an_example(database: Database) -> None:
    page = Page(ROOT / "docs" / "user" / "views.md")
    statements = "\n".join(piece.text for piece in pieces(page))
    with database.connect() as connection:
        views = connection.execute(
            "select viewname from pg_views where schemaname = 'tensile' order by viewname"
        ).fetchall()
    assert [name for (name,) in views if f"tensile.{name}" not in statements] == []


def test_a_typed_session_is_split_into_statements() -> None:
    session = "demo=> select 1;\n 1\ndemo=> select\ndemo-> x;\nERROR:  no x\nHINT:  Use y."
    assert list(typed(Block(info="psql", line=7, text=session))) == [
        Piece(user="demo", line=7, text="select 1;"),
        Piece(user="demo", line=9, text="select\nx;", error=("ERROR:  no x", "HINT:  Use y.")),
    ]


@pytest.mark.parametrize(
    ("text", "error", "fault"),
    [
        ("select 1 / 0;", (), "page:9: psql:<stdin>:5: ERROR:  division by zero"),
        ("\\nothing", (), "page:9: psql:<stdin>:5: error: invalid command"),
        ("select 1;", ("ERROR:  no x",), "page:9: this statement should fail"),
        ("select 1 / 0;", ("ERROR:  division by two",), "page:9: psql printed"),
    ],
)
def test_a_statement_that_does_not_do_what_its_page_shows_is_named(
    text: str, error: tuple[str, ...], fault: str, database: Database
) -> None:
    session = [Piece(user="demo", line=3, text="select 1;"), Piece(user="demo", line=9, text=text, error=error)]
    with pytest.raises(AssertionError, match=re.escape(fault)):
        run_session("page", database.dsn("demo"), session)


def _section(text: str, heading: str) -> str:
    """Return the text below a heading of the second or third level, up to the next heading."""
    lines = text.splitlines()
    starts = [n for n, line in enumerate(lines) if line.lstrip("#").strip() == heading and line.startswith("##")]
    if not starts:
        return ""
    rest = lines[starts[0] + 1 :]
    ends = [n for n, line in enumerate(rest) if line.startswith(("## ", "### "))]
    return "\n".join(rest[: ends[0]] if ends else rest)
