"""A database in SQL_ASCII with texts and names in Latin-1: each is kept as it is, or refused with its place."""

from collections.abc import Iterator

import psycopg
import pytest
from psycopg.pq import DiagnosticField, ExecStatus

from indb_tensile.cluster import Cluster
from tests.e2e.conftest import Service
from tests.e2e.encoded_service import encoded_service

pytestmark = [pytest.mark.postgres, pytest.mark.nightly]

ROWS = b"""
create table texts (id int primary key, n int, word text, plain text, label text, tags text[], doc jsonb);
insert into texts
select i, i % 7, case when i > 4 then 'caf\xe9' else 'tea' end, case when i % 7 < 3 then 'a' else 'b' end,
       case when i = 9 then 's\xfcss' else 'herb' end, array['x', case when i = 5 then 's\xfcss' end],
       jsonb_build_object('a', case when i = 6 then 'caf\xe9' end)
  from generate_series(1, 60) as i;
create table keys (id text primary key, n int, plain text);
insert into keys select 'k\xe9' || i, i % 7, case when i % 7 < 3 then 'a' else 'b' end
  from generate_series(1, 60) as i;
create table "t\xe9" as select id, n, plain from texts;
create table renamed as select id, n as "n\xe9", n, plain from texts;
create type taste as enum ('s\xfcss', 'herb');
create table tastes as select id, n, case when n < 3 then 'herb'::taste else 's\xfcss' end as plain from texts;
create table sound as select id, n, 'tea'::text as word, plain from texts;
alter table sound add primary key (id);
grant select on texts, keys, "t\xe9", renamed, tastes, sound to tensile_reader"""

# For each statement that is refused: what the error says.
REFUSED_STATEMENTS = {
    b"tensile_train('m', 'texts', target => 'label', features => '{n}')": (
        'a text in column "word" of public.texts, in the row with the key id 5, is not valid UTF-8'
    ),
    b"tensile_train('m', 'texts', target => 'label', exclude => '{word,plain,tags,doc}')": (
        'a text in column "label" of public.texts, in the row with the key id 9, is not valid UTF-8'
    ),
    b"tensile_train('m', '\"t\xe9\"', target => 'plain')": 'the name of public."t\\351" is not valid UTF-8',
    b"tensile_train('m', 'renamed', target => 'plain')": (
        'the name of column "n\\351" of public.renamed is not valid UTF-8'
    ),
    b"tensile_train('m', 'tastes', target => 'plain')": (
        'a label of the type of column "plain" of public.tastes is not valid UTF-8'
    ),
    b"tensile_train('m\xe9', 'sound', target => 'plain')": 'argument "model" has a text that is not valid UTF-8',
    b"tensile_train('m', 'sound', target => 'p\xe9')": 'argument "target" has a text that is not valid UTF-8',
    b"tensile_train_query('m', $$select n, plain from texts where word <> 'caf\xe9'$$, target => 'plain')": (
        'argument "query" has a text that is not valid UTF-8'
    ),
    b"tensile_predict('sound', row(1, 2, 'caf\xe9', 'a')::sound)": (
        'column "word" of row 1 has a text that is not valid UTF-8'
    ),
    b'tensile_predict(\'sound\', \'{"n": 1, "word": "caf\xe9"}\'::jsonb)': (
        'column "word" of row 1 has a text that is not valid UTF-8'
    ),
    b"tensile_predict_label('sound', 'caf\xe9')": "row 1 has a text that is not valid UTF-8",
    b"tensile_explain_prediction('sound', row(1, 2, 'caf\xe9', 'a')::sound)": (
        'column "word" of row 1 has a text that is not valid UTF-8'
    ),
    b"tensile_evaluate('sound', 'texts')": (
        'a text in column "word" of public.texts, in the row with the key id 5, is not valid UTF-8'
    ),
    b"tensile_predict_table('sound', 'texts')": 'row 5: column "word": the text is not valid UTF-8: caf\\xe9',
    b"tensile_predict_table('keyed', 'keys')": (
        'a text in column "id" of public.keys, in the row with the key id k\\3511, is not valid UTF-8'
    ),
}
# For each job that fails: its error, and the row's key.
FAILING_JOBS = {
    b"tensile_train('m', 'texts', target => 'plain', features => '{n,word}')": (
        'column "word", row 5: the text is not valid UTF-8: caf\\xe9',
        "The row's key is id 5.",
    ),
    b"tensile_train('m', 'texts', target => 'tags', features => '{n}')": (
        'column "tags", row 5: the text is not valid UTF-8: s\\xfcss',
        "The row's key is id 5.",
    ),
    b"""tensile_train('m', 'texts', target => 'plain', features => '{n,doc}',
                      preprocess => '{"paths": {"doc": {"a": "text"}}}')""": (
        'column "doc", row 6: the text is not valid UTF-8: {"a": "caf\\xe9"}',
        "The row's key is id 6.",
    ),
    b"tensile_train('m', 'keys', target => 'plain')": (
        'column "id", row 1: the text is not valid UTF-8: k\\xe91',
        "The first byte at fault is 0xe9.",
    ),
    b"tensile_train_query('m', 'select n, word, plain from texts', target => 'plain')": (
        'column "word", row 5: the text is not valid UTF-8: caf\\xe9',
        "The first byte at fault is 0xe9.",
    ),
    b"tensile_predict_into('sound', 'texts', 'answers')": (
        'column "word", row 5: the text is not valid UTF-8: caf\\xe9',
        "The first byte at fault is 0xe9.",
    ),
}
CONVERTED = b"""
select tensile_train_query('converted', $$
  select n, plain, convert_from(convert(convert_to(word, 'SQL_ASCII'), 'LATIN1', 'UTF8'), 'UTF8') as word
    from texts$$, target => 'plain', hyperparams => '{"epochs": 1}')"""


@pytest.fixture(scope="module")
def service(cluster: Cluster, template: str) -> Iterator[Service]:
    """A controller on a database in SQL_ASCII, with the models `sound` and `keyed`."""
    del template  # it has created the roles
    with encoded_service(cluster, "SQL_ASCII") as service:
        service.start()
        with raw_session(service, "demo") as demo:
            run(demo, ROWS)
            for model, features in ((b"sound", b"{n,word}"), (b"keyed", b"{n}")):
                job = run(
                    demo,
                    b"select tensile_train('%s', 'sound', target => 'plain', features => '%s', "
                    b"hyperparams => '{\"epochs\": 1}')" % (model, features),
                )
                assert service.until_ended(int(job[0][0] or b"")) == ["succeeded"]
        yield service


def raw_session(service: Service, user: str) -> psycopg.Connection:
    """Connect as a client that sends and takes bytes, and leaves their meaning to its user."""
    return psycopg.connect(service.database.dsn(user), autocommit=True, client_encoding="SQL_ASCII")


class RefusedError(Exception):
    """An error of the server, with the values of its fields."""

    def __init__(self, fields: dict[str, str]) -> None:
        super().__init__(fields)
        self.fields = fields


def run(connection: psycopg.Connection, statement: bytes) -> list[list[bytes | None]]:
    """Run statements that may have any bytes."""
    result = connection.pgconn.exec_(statement)
    if result.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
        fields = {field.name: result.error_field(field) or b"" for field in DiagnosticField}
        raise RefusedError({name: value.decode() for name, value in fields.items()})
    return [[result.get_value(row, field) for field in range(result.nfields)] for row in range(result.ntuples)]


@pytest.mark.parametrize("statement", REFUSED_STATEMENTS, ids=lambda statement: repr(statement))
def test_a_statement_is_refused_with_the_place_of_the_text(service: Service, statement: bytes) -> None:
    with raw_session(service, "demo") as demo, pytest.raises(RefusedError) as refusal:
        run(demo, b"select * from " + statement)
    fields = refusal.value.fields
    assert (fields["MESSAGE_PRIMARY"], fields["SQLSTATE"]) == (REFUSED_STATEMENTS[statement], "22021")
    assert "SQL_ASCII" in fields["MESSAGE_DETAIL"]
    assert "UTF-8" in fields["MESSAGE_HINT"]


@pytest.mark.parametrize("statement", FAILING_JOBS, ids=lambda statement: repr(statement))
def test_a_job_fails_once_with_the_place_of_the_text(service: Service, statement: bytes) -> None:
    with raw_session(service, "demo") as demo:
        ((job,),) = run(demo, b"select " + statement)
    assert job is not None
    assert service.until_ended(int(job)) == ["failed"]
    sqlstate, message, detail, hint, attempts = service.value(
        "select array[error_sqlstate, error_message, error_detail, error_hint, attempt::text] "
        "from tensile.jobs where job_id = %s",
        int(job),
    )
    assert (sqlstate, message, attempts) == ("22021", FAILING_JOBS[statement][0], "1")
    assert detail.startswith(FAILING_JOBS[statement][1])
    assert "convert_from" in hint


def test_texts_that_the_hint_converts_are_trained_on(service: Service) -> None:
    with raw_session(service, "demo") as demo:
        ((job,),) = run(demo, CONVERTED)
        assert service.until_ended(int(job or b"")) == ["succeeded"]
        assert run(demo, "select tensile_predict_label('converted', row(1, 'café')::record)".encode())


def test_keys_are_written_with_their_bytes_beside_their_predictions(service: Service) -> None:
    with raw_session(service, "demo") as demo:
        ((job,),) = run(demo, b"select tensile_predict_into('keyed', 'keys', 'with_keys')")
        assert service.until_ended(int(job or b"")) == ["succeeded"]
        both = run(demo, b"select id from keys order by id"), run(demo, b"select id from with_keys order by id")
        assert both[0] == both[1]


def test_a_role_whose_name_is_not_valid_is_refused_and_disturbs_nobody(service: Service) -> None:
    role = b'"r\xe9"'
    train = b"select tensile_train('%s', 'sound', target => 'plain', hyperparams => '{\"epochs\": 1}')"
    with raw_session(service, "postgres") as server, raw_session(service, "postgres") as session:
        run(server, b"create role clear; grant tensile_user to clear; grant select on sound to clear")
        try:
            run(session, b"set session authorization clear")
            ((job,),) = run(session, train % b"theirs")
            run(server, b"alter role clear rename to " + role)
            with pytest.raises(RefusedError) as refusal:
                run(session, train % b"others")
            with raw_session(service, "demo") as demo:
                ((other,),) = run(demo, train % b"sound")
            assert service.until_ended(int(job or b""), int(other or b"")) == ["failed", "succeeded"]
            error = service.value("select error_message from tensile.jobs where job_id = %s", int(job or b""))
            assert error == (
                "table public.sound cannot be read: a name of a table, a column, a type or a role is not valid UTF-8"
            )
        finally:
            run(
                server,
                b"reset role; alter role %s rename to clear; drop owned by clear cascade; drop role clear" % role,
            )
    assert refusal.value.fields["MESSAGE_PRIMARY"] == 'the name of role "r\\351" is not valid UTF-8'
    assert refusal.value.fields["MESSAGE_HINT"] == "Rename it, with a name in UTF-8."
