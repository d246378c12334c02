"""Check which arguments and names `tensile_train` refuses, and the fields of its errors."""

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
            "target => '', task => 'pairs'",
            Refused(
                "42703",
                'column "" of relation "public.iris" does not exist',
                None,
                _NO_SUCH_COLUMN,
            ),
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
            """target => 'species', hyperparams => '{"class_weight": {"virginika": 5}}'""",
            Refused(
                "22023",
                'hyperparams: "class_weight" names "virginika", and target "species" of table "public.iris" has no '
                "such class",
                "The classes are: setosa, virginica.",
                'Did you mean "virginica"? Name classes as the table shows them; a class that is left out has the '
                "weight 1.",
            ),
        ),
        (
            """target => 'label_known', hyperparams => '{"class_weight": {"t": 5}}'""",
            Refused(
                "22023",
                'hyperparams: "class_weight" names "t", and target "label_known" of table "public.iris" has no '
                "such class",
                "The classes are: false, true.",
                "Name classes as the table shows them; a class that is left out has the weight 1.",
            ),
        ),
        (
            """target => 'species', architecture => '{"type": "mlp", "batch_norm": true}',
               hyperparams => '{"batch_size": 1}'""",
            Refused(
                "22023",
                'hyperparams: "batch_size" is 1, and architecture mlp has batch normalisation',
                "Batch normalisation cannot learn from a single row.",
                'Set "batch_size" to 2 or more, or train without: {"type": "mlp", "batch_norm": false}.',
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
            "target => 'petal, sepal'",
            Refused(
                "42703",
                'column "petal, sepal" of relation "public.iris" does not exist',
                None,
                """Name several targets as a JSON list: target => '["petal", "sepal"]'.""",
            ),
        ),
        (
            """target => 'species', hyperparams => '{"batch_size": {"range": [8, 64]}}'""",
            Refused(
                "22023",
                'hyperparams: "batch_size" is {"range": [8, 64]}',
                None,
                '"batch_size" must be an integer at least 1 and at most 1048576. An object is for a value that '
                'varies in tensile_search: {"range": [0.001, 0.1], "log": true} or {"choices": [64, 256]}.',
            ),
        ),
        (
            """target => 'species', split => '{"test": 0.2}'""",
            Refused(
                "22023",
                'split: "test" is 0.2',
                None,
                '"test" must be the name of a table with the rows of that part. To give a share of the rows: '
                """split => '{"test_size": 0.2}'.""",
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
            "target => 'species', not_before => 'infinity'",
            Refused(
                "22023",
                "not_before is infinity, so the job would never start",
                None,
                "Give a time; or leave it out, and hold the job with tensile_pause(job) until tensile_resume(job).",
            ),
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
            'target => \'species\', devices => 4, architecture => \'{"type": "mlp", "batch_norm": true}\', '
            "hyperparams => '{\"batch_size\": 4}'",
            Refused(
                "22023",
                "devices is 4, and each would normalise one row of a batch of 4 rows",
                "Batch normalisation cannot learn from a single row.",
                "Give a batch_size of 8 or more, or use fewer devices.",
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


@pytest.mark.shares_database
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


@pytest.mark.shares_database
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
