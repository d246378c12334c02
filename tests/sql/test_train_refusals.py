"""Check which trainings `tensile_train` refuses, and the fields of its errors."""

import pytest

from .conftest import Connection, Refused, refused, value

pytestmark = pytest.mark.postgres

_COLUMNS = "id, petal, sepal, species, kind, label_known"

_NO_SUCH_COLUMN = f"The columns are {_COLUMNS}."


@pytest.mark.shares_database
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            "target => 'colour'",
            Refused("42703", 'column "colour" of relation "public.iris" does not exist', None, _NO_SUCH_COLUMN),
        ),
        (
            "target => 'species', features => array['colour']",
            Refused(
                "42703",
                'column "colour" of relation "public.iris" does not exist',
                "It is named in features.",
                _NO_SUCH_COLUMN,
            ),
        ),
        (
            "target => 'species', exclude => array['colour']",
            Refused(
                "42703",
                'column "colour" of relation "public.iris" does not exist',
                "It is named in exclude.",
                _NO_SUCH_COLUMN,
            ),
        ),
        (
            "target => 'species', architecture => 'mlp', preprocess => '{\"encode\": \"tokens\"}'",
            Refused(
                "22023",
                'preprocess: "encode" is tokens, which architecture mlp does not read',
                None,
                "Give one of auto, tabm, residual_mlp, ft_transformer, dcn, wide_and_deep, two_towers, pretrained, "
                "or another encoding.",
            ),
        ),
        (
            "target => 'species', hyperparams => '{\"length_buckets\": 4}'",
            Refused(
                "22023",
                'hyperparams: "length_buckets" is 4, and no column is read as tokens',
                None,
                'Read a column as tokens, preprocess => \'{"encode": {"body": "tokens"}}\', or leave it out.',
            ),
        ),
        (
            "target => null",
            Refused(
                "22023",
                'no target is given for table "public.iris"',
                "It has no column named target, label, class, y.",
                f"Name the column to predict with target => '...'. Columns: {_COLUMNS}.",
            ),
        ),
        (
            "target => 'species', task => 'regression'",
            Refused(
                "22023",
                'target "species" of table "public.iris" has type text, which regression cannot predict',
                None,
                "Name a numeric column with target => '...', or use task => 'classification'.",
            ),
        ),
        (
            """target => 'petal', task => 'regression', hyperparams => '{"class_weight": "balanced"}'""",
            Refused(
                "22023",
                'hyperparams: "class_weight" is for classification and multilabel only',
                None,
                'Leave it out, or name a column of weights: "weight".',
            ),
        ),
        (
            """target => 'species', features => array['petal', 'sepal'], hyperparams => '{"mixup": 0.2}'""",
            Refused(
                "22023",
                'hyperparams: "mixup" is 0.2, and the features are 0 images and 2 other columns',
                "Mixup averages the pixels of two images. An average of categories means nothing.",
                "Leave it out, or learn from columns of bytea with images alone: features => array[...].",
            ),
        ),
        (
            """target => 'petal', task => 'regression', hyperparams => '{"mixup": 0.2}'""",
            Refused(
                "22023",
                'hyperparams: "mixup" is 0.2, and task regression has no classes that could be mixed',
                None,
                "Leave it out: mixup is for classification of images.",
            ),
        ),
        (
            """target => 'petal', task => 'regression', hyperparams => '{"loss": "focal"}'""",
            Refused(
                "22023",
                'hyperparams: loss "focal" is not for regression',
                None,
                "For regression: mse, mae, huber, poisson, quantile.",
            ),
        ),
        (
            """target => 'species', hyperparams => '{"loss": "hubert"}'""",
            Refused(
                "22023",
                'hyperparams: "loss" is "hubert"',
                None,
                'Did you mean "huber"? "loss" must be one of cross_entropy, focal, mse, mae, huber, poisson, '
                "quantile, binary_cross_entropy, pinball, reconstruction, in_batch_softmax.",
            ),
        ),
        (
            """target => 'species', hyperparams => '{"schedule": "plateau"}', split => '{"valid_size": 0}'""",
            Refused(
                "22023",
                "schedule plateau needs validation rows, and the split's valid_size is 0",
                None,
                "Give a valid_size above 0, or another schedule.",
            ),
        ),
        (
            """target => 'species', hyperparams => '{"weight": "species"}'""",
            Refused(
                "22023",
                'hyperparams: the weight "species" is also the target',
                None,
                "Name a column of weights, which is not learned from.",
            ),
        ),
        (
            """target => 'species', hyperparams => '{"weight": "colour"}'""",
            Refused(
                "42703",
                'column "colour" of relation "public.iris" does not exist',
                "It is named in hyperparams.",
                _NO_SUCH_COLUMN,
            ),
        ),
        (
            """target => 'petal', hyperparams => '{"weight": "species"}'""",
            Refused(
                "22023",
                'hyperparams: column "species" of table "public.iris" has type text, which cannot be a weight',
                None,
                "Name a column of numbers of 0 or more.",
            ),
        ),
        (
            """target => 'species', preprocess => '{"paths": {"petal": {"a": "number"}}}'""",
            Refused(
                "22023",
                'preprocess: "paths" means nothing to column "petal" of type real',
                None,
                "It is for columns of kind document: leave it out.",
            ),
        ),
        (
            "target => 'species', task => 'guessing'",
            Refused(
                "22023",
                'unknown task "guessing"',
                None,
                "Known: classification, regression, multilabel, forecast, anomaly, pairs.",
            ),
        ),
        (
            "target => 'species', features => array['species']",
            Refused("22023", '"species" is both target and feature', None, "Leave it out of features."),
        ),
        (
            "target => 'species', exclude => array['petal', 'sepal', 'kind', 'label_known']",
            Refused(
                "22023",
                'no features are left in table "public.iris"',
                None,
                f"Name columns with features => array['...']. Columns: {_COLUMNS}.",
            ),
        ),
        (
            "target => 'species', architecture => 'perceptron'",
            Refused(
                "22023",
                'unknown architecture "perceptron"',
                None,
                "Give a name (auto, mlp, cnn, resnet, vit, timm, layers, tabm, residual_mlp, ft_transformer, "
                "dcn, wide_and_deep, autoencoder, two_towers, window_mlp, dlinear, tcn, window_lstm, pretrained, "
                "boosting, linear), a JSON object such as "
                '{"type": "mlp", "hidden": [64, 64], "dropout": 0.1}, or a list of layers such as '
                '[{"type": "linear", "out": 64}, {"type": "relu"}, {"type": "linear"}].',
            ),
        ),
        (
            """target => 'species', architecture => '{"type": "mlp", "width": 3}'""",
            Refused(
                "22023",
                'architecture mlp: unknown parameter "width"',
                None,
                "Known parameters: hidden, activation, dropout, batch_norm, input_shape.",
            ),
        ),
        (
            """target => 'species', hyperparams => '{"epochs": 0}'""",
            Refused(
                "22023",
                'hyperparams: "epochs" is 0',
                None,
                '"epochs" must be an integer at least 1 and at most 100000.',
            ),
        ),
        (
            """target => 'species', hyperparams => '{"optimizer": "lyon"}'""",
            Refused(
                "22023",
                'hyperparams: "optimizer" is "lyon"',
                None,
                'Did you mean "lion"? "optimizer" must be one of sgd, adam, adamw, adagrad, rmsprop, lion.',
            ),
        ),
        (
            """target => 'species', split => '{"test_size": 0.9}'""",
            Refused(
                "22023",
                "split: test_size 0.9 and valid_size 0.15 leave no rows to train on",
                None,
                "Keep their sum below 1.",
            ),
        ),
        (
            "target => 'species', metric => 'r2'",
            Refused(
                "22023",
                'unknown metric "r2" for classification',
                None,
                "For classification: accuracy, balanced_accuracy, precision_macro, recall_macro, f1_macro, log_loss, "
                "roc_auc, brier, calibration_error.",
            ),
        ),
        (
            "target => 'species', priority => 1001",
            Refused(
                "22023",
                "priority is 1001",
                None,
                "Give a number from -1000 to 1000; of your own jobs, those of higher priority go first.",
            ),
        ),
        (
            "target => 'species', memory_limit => '-1 MB'",
            Refused("22023", 'memory_limit is "-1 MB"', None, "Give a size above 0, such as '512 MB'."),
        ),
        (
            "target => 'species', memory_limit => 'lots'",
            Refused(
                "22023",
                'memory_limit is "lots"',
                'PostgreSQL says: invalid size: "lots".',
                "Give a size above 0, such as '512 MB'.",
            ),
        ),
        (
            "target => 'species', memory_limit => '9999999999 GB'",
            Refused(
                "22023",
                'memory_limit is "9999999999 GB"',
                "PostgreSQL says: bigint out of range.",
                "Give a size above 0, such as '512 MB'.",
            ),
        ),
        (
            "target => 'species', max_runtime => '0 s'",
            Refused("22023", "max_runtime is 0.0 seconds", None, "Give an interval of a second or more."),
        ),
        (
            "target => 'species', devices => 65",
            Refused(
                "22023",
                "devices is 65",
                None,
                "Give a number from 1 to 64: each device computes a part of every batch.",
            ),
        ),
        (
            'target => \'species\', devices => 2, architecture => \'{"type": "mlp", "batch_norm": true}\'',
            Refused(
                "22023",
                "devices is 2, and the network has batch normalisation",
                "Its running statistics depend on the order in which the parts of a batch are computed, and several "
                "devices compute them at once.",
                "Use a network without it, such as batch_norm false or layer_norm, or train on one device.",
            ),
        ),
        (
            "target => 'species', hyperparams => '{\"reduce\": \"fast\"}'",
            Refused(
                "22023",
                'hyperparams: "reduce" is fast, and one device trains',
                "It says how several devices add up their gradients.",
                'Leave "reduce" out, or give devices => 2 or more.',
            ),
        ),
        (
            "target => 'species', deploy => 'maybe'",
            Refused("22023", 'unknown deploy "maybe"', None, "Known: if_better, always, never."),
        ),
        (
            "target => 'species', depends_on => array[1]",
            Refused(
                "42704",
                "there is no job 1, on which the new job is to depend",
                "A job depends on jobs of the same owner that exist already, and have not been deleted since.",
                "See your jobs: select * from tensile.stat_jobs;",
            ),
        ),
        (
            "target => 'species', init_from => 'other'",
            Refused(
                "42704",
                'init_from: there is no model "other"',
                None,
                "See your models: select * from tensile.model_list. A version is named as in 'model@3'.",
            ),
        ),
    ],
)
def test_invalid_argument_is_refused(alice: Connection, arguments: str, error: Refused) -> None:
    actual = refused(alice, f"select tensile_train('flowers', 'iris', {arguments})")

    assert (actual.sqlstate, actual.message, actual.detail) == (error.sqlstate, error.message, error.detail)
    assert error.hint is None or actual.hint == error.hint
    assert value(alice, "select count(*) from tensile.jobs") == 0


@pytest.mark.parametrize(
    ("table", "error"),
    [
        (
            "create table t (a real, y int)",
            Refused(
                "22000", 'table "public.t" has no rows', None, "Insert rows, commit, and call tensile_train again."
            ),
        ),
        (
            "create table t as select 1.0::real as a, null::int as y from generate_series(1, 5)",
            Refused(
                "22000",
                'target "y" of table "public.t" is NULL in all 5 rows',
                None,
                "Fill it, or name another column with target => '...'.",
            ),
        ),
        (
            "create table t as select i::real as a, 'only' as y from generate_series(1, 5) as i",
            Refused(
                "22000",
                'target "y" of table "public.t" has one class only: only',
                None,
                "Classification needs two classes or more: add rows of another one, or name another target.",
            ),
        ),
        (
            "create table t as select i::real as a, 'NaN'::float8 as y from generate_series(1, 5) as i",
            Refused(
                "22000",
                'target "y" of table "public.t" is not finite in 5 of its first rows',
                None,
                "Delete these rows, or set their target to NULL to leave them out.",
            ),
        ),
        (
            "create table t as select i::real as a, 2.5::float8 as y from generate_series(1, 5) as i",
            Refused(
                "22000",
                'target "y" of table "public.t" is 2.5 in every row',
                None,
                "Regression needs values that differ: add rows, or name another target.",
            ),
        ),
        (
            "create table t as select array_fill(1.0::real, array[i]) as a, i as y from generate_series(1, 3) as i",
            Refused(
                "22000",
                'feature "a" of table "public.t" holds arrays of different shapes',
                "Among the first rows are [1:1] and [1:3].",
                "Leave it out with exclude => array['a'], or make the arrays alike.",
            ),
        ),
        (
            "create table t as select '[0:1]={1,2}'::real[] as a, i as y from generate_series(1, 3) as i",
            Refused(
                "22000",
                'feature "a" of table "public.t" holds arrays whose lower bound is not 1: [0:1]',
                None,
                "Leave it out with exclude => array['a'], or make the arrays alike.",
            ),
        ),
        (
            "create table t as select i as a, '\\x00'::bytea as u, i as y from generate_series(1, 3) as i",
            Refused(
                "22000",
                'none of the first 3 values of "u" of table "public.t" is an image',
                "A value starts with 00. Images of bytea are in one of these formats: "
                "PNG, JPEG, WebP, BMP, GIF, TIFF.",
                "Leave it out with exclude => array['u']: a network reads no other bytes.",
            ),
        ),
        (
            "create table t as select i as a, current_date as y from generate_series(1, 3) as i",
            Refused(
                "22023",
                'target "y" of table "public.t" has type date, which classification cannot predict',
                None,
                "Name a text, boolean or numeric column with target => '...'.",
            ),
        ),
    ],
)
def test_table_that_cannot_be_learned_from_is_refused(alice: Connection, table: str, error: Refused) -> None:
    alice.execute(f"{table}; grant select on t to tensile_reader".encode())

    assert refused(alice, "select tensile_train('m', 't')") == error


def test_missing_table_is_refused(alice: Connection) -> None:
    error = refused(alice, "select tensile_train('m', 'nowhere')")

    assert (error.sqlstate, error.message) == ("42P01", 'relation "nowhere" does not exist')


def let_alice_create_schemas(admin: Connection) -> None:
    admin.execute("do $$ begin execute format('grant create on database %I to alice', current_database()); end $$")


def test_error_names_each_grant_that_the_caller_lacks(alice: Connection, bob: Connection, admin: Connection) -> None:
    let_alice_create_schemas(admin)
    alice.execute('create schema "my plot"; create table "my plot".t as select 1 as a, 1 as y')
    oid = value(alice, """select '"my plot".t'::regclass::oid""")

    assert refused(bob, "select tensile_train('m', %s::oid::regclass)", oid) == Refused(
        "42501",
        'permission denied for table "my plot.t"',
        None,
        'Ask its owner for: grant usage on schema "my plot" to bob; grant select on "my plot".t to bob;',
    )


def test_error_names_each_grant_that_the_trainers_role_lacks(alice: Connection, admin: Connection) -> None:
    let_alice_create_schemas(admin)
    alice.execute('create schema "my plot"; create table "my plot".t as select 1 as a, 1 as y')

    assert refused(alice, """select tensile_train('m', '"my plot".t')""") == Refused(
        "42501",
        'the role tensile_reader may not read table "my plot.t"',
        "Trainers read tables as this role: it needs SELECT on every partition and child that holds rows, and USAGE "
        "on their schemas. With snapshot => true they read a copy that the caller's session writes.",
        'Run: grant usage on schema "my plot" to tensile_reader; grant select on "my plot".t to tensile_reader;',
    )


def test_error_names_every_partition_that_the_trainers_role_may_not_read(alice: Connection) -> None:
    alice.execute(
        """create table t (a real, y int) partition by list (y);
           create table t0 partition of t for values in (0);
           create table t1 partition of t for values in (1) partition by list (a);
           create table t10 partition of t1 for values in (0);
           create table t2 partition of t for values in (2);
           insert into t values (0, 0), (0, 1), (0, 2); grant select on t, t0 to tensile_reader;
           grant select (a, y) on t2 to tensile_reader"""
    )

    error = refused(alice, "select tensile_train('m', 't')")

    assert error.hint == "Run: grant select on public.t10 to tensile_reader;"
    alice.execute((error.hint or "").removeprefix("Run: ").encode())
    assert value(alice, "select tensile_train('m', 't')") > 0


def test_model_name_of_another_user_is_refused(alice: Connection, bob: Connection) -> None:
    alice.execute("select tensile_create_model('flowers'); grant select on iris to bob")
    name_taken = Refused(
        "42501",
        'model "flowers" belongs to another role',
        None,
        "Model names are unique in the database: choose another name.",
    )

    assert refused(bob, "select tensile_train('flowers', 'iris', target => 'species')") == name_taken
    assert refused(bob, "select tensile_create_model('flowers')") == name_taken


def test_second_definition_of_a_model_is_refused(alice: Connection) -> None:
    alice.execute("select tensile_create_model('it''s', 'cnn')")

    assert refused(alice, "select tensile_create_model('it''s', 'mlp')") == Refused(
        "42710",
        'model "it\'s" already exists',
        None,
        "To replace it, drop it first: select tensile_drop_model('it''s').",
    )


def test_unknown_layer_is_refused(alice: Connection) -> None:
    error = refused(
        alice,
        """select tensile_create_model('m', '{"type": "layers", "layers": [
             {"type": "residual", "layers": [{"type": "linear"}, {"type": "linera"}]}]}')""",
    )

    assert (error.sqlstate, error.message) == (
        "22023",
        'architecture: layer 0. 1 is {"type": "linera"}, whose type is not known',
    )


@pytest.mark.parametrize(
    "relation", ["create index t on iris (petal)", "create sequence t", "create type t as (a real, y int)"]
)
def test_relation_without_rows_of_its_own_is_refused(alice: Connection, relation: str) -> None:
    alice.execute(relation.encode())

    error = refused(alice, "select tensile_train('m', 't')")

    assert (error.sqlstate, error.hint) == ("42809", "Name the table that holds the rows to train on.")


def test_uuid_that_differs_in_each_row_is_left_out_and_refused_by_name(alice: Connection) -> None:
    alice.execute(
        """create table sessions (visit uuid, visitor uuid, x real, y int);
           insert into sessions select gen_random_uuid(), md5((i % 4)::text)::uuid, i, i % 2
             from generate_series(1, 20) as i;
           grant select on sessions to tensile_reader"""
    )
    notices: list[str] = []
    alice.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
    job = value(alice, "select tensile_train('m', 'sessions', 'y')")
    assert "left out of the features, as each of the first rows has a different uuid: visit" in notices
    assert value(alice, "select spec -> 'exclude' from tensile.jobs where job_id = %s", job) == ["visit"]

    named = "select tensile_train('m', 'sessions', 'y', features => array['visit', 'visitor', 'x'])"
    error = refused(alice, named)
    assert (error.sqlstate, error.message, error.detail) == (
        "22023",
        'column of table "public.sessions" cannot be learned from: "visit"',
        '"visit" (uuid): each of the first rows has a different value; there is nothing to learn from it.',
    )
    assert (error.hint or "").startswith("Leave it out")


def test_error_names_all_columns_that_cannot_be_learned_from(alice: Connection) -> None:
    alice.execute(
        """create table odd (a json, b real, c point, d int4range, e iris, f money, g uuid, y int);
           insert into odd select '{}', i, '(1,2)', '[1,2)', null, '1', gen_random_uuid(), i % 2
             from generate_series(1, 9) as i;
           grant select on odd to tensile_reader"""
    )

    error = refused(alice, "select tensile_train('m', 'odd')")

    assert error.message == ('5 columns of table "public.odd" cannot be learned from: "a", "c", "d", "e", "f"')
    assert error.hint is not None
    assert error.hint.startswith("Leave them out with exclude => array['a', 'c', 'd', 'e', 'f'], or cast them ")
    assert error.detail == (
        '"a" (json): no paths of it are chosen; choose them, as in preprocess => '
        """'{"paths": {"a": {"a.b": "number"}}}'. """
        '"c" (point): a geometric type; select coordinates as numbers. '
        '"d" (int4range): a range; select lower() and upper(). '
        '"e" (public.iris): a composite type; select its fields. '
        '"f" (money): the server\'s locale decides its value; cast it to numeric.'
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            """preprocess => '{"missing": {"colour": "mean"}}'""",
            'preprocess: "missing" names column "colour", which table "public.iris" does not have',
        ),
        (
            """preprocess => '{"categories": {"petal": 3}}'""",
            'preprocess: "categories" means nothing to column "petal" of type real',
        ),
        (
            """architecture => '[{"type": "linear", "trainable": false}]'""",
            'architecture: layer 0 (linear): unknown parameter "trainable"',
        ),
        (
            """hyperparams => '{"momentum": 0.5}'""",
            'hyperparams: "momentum" means nothing with optimizer adamw',
        ),
        (
            """hyperparams => '{"optimizer": "adagrad", "alpha": 0.9}'""",
            'hyperparams: "alpha" means nothing with optimizer adagrad',
        ),
        (
            """hyperparams => '{"average_decay": 1}'""",
            'hyperparams: "average_decay" is 1',
        ),
    ],
)
def test_arguments_that_a_worker_would_refuse_are_refused_at_enqueue(
    alice: Connection, arguments: str, message: str
) -> None:
    error = refused(alice, f"select tensile_train('flowers', 'iris', target => 'species', {arguments})")

    assert (error.message, value(alice, "select count(*) from tensile.jobs")) == (message, 0)
