"""Check with attacks on every object of the catalog that no role reads, changes or locks objects of another role."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping

import pytest

from tests.conftest import Database
from tests.nightly import nightly_unless
from tests.security.attack_runs import AttackReport, Outcome, State, run_attack
from tests.security.attacks import attacks
from tests.security.owned_objects import OWNER, VICTIM, create_owned_objects

log = logging.getLogger(__name__)

pytestmark = pytest.mark.postgres

# What every role may call, and why.
PUBLIC = {"tensile_require_role(name)": "returns nothing, or an error if the caller is not a member of the role"}
# What an ordinary user may read or call although it belongs to nobody or to others, and why.
SHARED = PUBLIC | {
    "tensile.active_jobs()": "counts of jobs by controller, without names: why a job waits",
    "tensile.answer(text,jsonb,jsonb[])": "calls the bridge, which see",
    "tensile.attributions(text,anycompatible,integer,text,bigint)": "calls the bridge, which see",
    "tensile.awaited_words(bigint)": "reads the dependencies that the caller sees",
    "tensile.bin_labels(jsonb)": "describes the caller's own argument",
    "tensile.bridge(text,jsonb,jsonb[])": "checks privileges itself, and returns errors as answers",
    "tensile.catalog_digest()": "a digest of the catalog's source",
    "tensile.catalog_version()": "the catalog's version",
    "tensile.check_row_size(anycompatible,bigint)": "measures the caller's own argument",
    "tensile.current_role_oid()": "the caller's own oid",
    "tensile.drift_of_chance(bigint[],bigint[])": "computes with the caller's own arguments",
    "tensile.drift_reading(double precision,double precision)": "describes the caller's own arguments",
    "tensile.devices": "memory of devices for all jobs together, to see whether a training would start now",
    "tensile.device_samples": "the history of tensile.devices: totals over all jobs",
    "tensile.first_drift_day()": "the present day less a setting",
    "tensile.follow_job(bigint,text)": "returns nothing about a job that the caller does not see",
    "tensile.gang_words(bigint,integer,bigint)": "the number of devices, and whether another gang is being formed",
    "tensile.installation()": "the id of the database",
    "tensile.intake()": "the numbers of controllers, slots and jobs, and what the next job waits for",
    "tensile.invalid_byte(text)": "checks the caller's own argument",
    "tensile.invalid_place(oid,text[])": "reads a relation with the caller's privileges",
    "tensile.is_alive(tensile.workers)": "reads its argument",
    "tensile.key_text(anyelement)": "formats the caller's own argument",
    "tensile.known_settings()": "names and defaults of settings",
    "tensile.models": "the caller may create a model of its own",
    "tensile.text_fault(jsonb,jsonb[])": "checks the caller's own arguments",
    "tensile.texts_of(jsonb)": "reads the caller's own argument",
    "tensile.owners_at_limit(integer,oid)": "counts the jobs that the caller sees",
    "tensile.page_error(text)": "raises an error of the caller's own making",
    "tensile.population_stability(bigint[],bigint[])": "computes with the caller's own arguments",
    "tensile.prediction(text,anycompatible,integer,text)": "calls the bridge, which see",
    "tensile.prediction_function(text)": "names functions",
    "tensile.prediction_part(text,integer,text,text,bigint,jsonb[])": "calls the bridge, which see",
    "tensile.prediction_pages(bigint,text)": "an error, unless the caller has prepared the reading",
    "tensile.previous_version(bigint)": "reads the deployments that the caller sees",
    "tensile.queue_positions(bigint[])": "the number of jobs before a job, without names",
    "tensile.quota_of(oid)": "defaults, and the quota of the caller's own role",
    "tensile.row_fault(anycompatible,bigint)": "measures the caller's own argument",
    "tensile.row_bytes(anyelement)": "measures the caller's own argument",
    "tensile.relation_title(oid,text,text)": "formats the caller's own arguments",
    "tensile.row_form(regtype)": "describes the caller's own argument",
    "tensile.row_json(anyelement)": "formats the caller's own argument",
    "tensile.setting(text)": "a setting's value",
    "tensile.setting_list": "all settings: how long rows are kept, how large snapshots may be",
    "tensile.shown_text(text)": "formats the caller's own argument",
    "tensile.spec_fault(jsonb)": "checks the caller's own argument",
    "tensile.stat_device": "see tensile.devices",
    "tensile.stat_device_history": "see tensile.device_samples",
    "tensile.stat_workers": "see tensile.workers",
    "tensile.training_request": "puts its arguments into one JSON object",
    "tensile.search_request(jsonb,integer,integer,text,text,bigint,interval)": "adds its arguments to a JSON object",
    "tensile.try_commit(boolean)": "commits the caller's own transaction",
    "tensile.usage_day()": "the present day in UTC",
    "tensile.view_parts(text,text,text)": "reads the caller's own arguments",
    "tensile.asked_devices(tensile.jobs)": "reads its argument",
    "tensile.workers": "controllers and their services, to which prediction requests go",
    "tensile_check()": "what is missing for trainings and predictions",
    "tensile_version()": "the catalog's version",
}
# What a grant to predict with a model adds.
GRANTED = {
    "tensile.best_version(bigint)": "reads the versions that the caller sees",
    "tensile.model_list": "the model's name, its versions and their metrics",
    "tensile.model_privileges": "the grant itself",
    "tensile.model_versions": "the data that predictions need: task, target, metrics",
    "tensile.models": "the model's name and owner",
    "tensile.version_figures": "the metrics of baselines; only the owner sees figures that name classes",
    "tensile_training_info(text)": "the versions of a model",
}
# What monitors read: everything about jobs and models, except data that is made from training data.
MONITORED = dict.fromkeys(
    (
        *("tensile.checkpoints", "tensile.device_jobs", "tensile.devices", "tensile.job_events"),
        *("tensile.job_progress", "tensile.jobs", "tensile.metrics", "tensile.model_list"),
        *("tensile.model_privileges", "tensile.model_versions", "tensile.models", "tensile.plans"),
        *("tensile.stat_device", "tensile.stat_device_jobs", "tensile.stat_jobs", "tensile.stat_plan"),
        *("tensile.stat_progress_train", "tensile.stat_queue", "tensile.stat_workers", "tensile.workers"),
        *("tensile.active_jobs()", "tensile.catalog_digest()", "tensile.catalog_version()"),
        *("tensile.current_role_oid()", "tensile.installation()", "tensile.intake()", "tensile.known_settings()"),
        *("tensile.owners_at_limit(integer,oid)", "tensile.queue_positions(bigint[])", "tensile.quota_of(oid)"),
        *("tensile.quota_use()", "tensile.relation_title(oid,text,text)", "tensile.setting(text)"),
        *("tensile.setting_list", "tensile.stat_quotas", "tensile.device_samples", "tensile.device_job_samples"),
        *("tensile.stat_device_history", "tensile.stat_device_job_history"),
        *("tensile.awaited_words(bigint)", "tensile.page_error(text)", "tensile.row_json(anyelement)"),
        *("tensile.deployments", "tensile.deployment_history", "tensile.job_ranks", "tensile.stat_ranks"),
        *("tensile.gang_words(bigint,integer,bigint)", "tensile.asked_devices(tensile.jobs)"),
        *("tensile.is_alive(tensile.workers)", "tensile.owner_usage", "tensile.stat_usage"),
        *("tensile.usage", "tensile.usage_day()", "tensile.version_figures"),
        *("tensile.population_stability(bigint[],bigint[])", "tensile.drift_of_chance(bigint[],bigint[])"),
        *("tensile.drift_reading(double precision,double precision)", "tensile.first_drift_day()"),
        "tensile.bin_labels(jsonb)",
        "tensile.search_request(jsonb,integer,integer,text,text,bigint,interval)",
        *("tensile.training_request", "tensile_require_role(name)", "tensile_version()"),
    ),
    "monitors see every job, model, plan and device",
)
READABLE: Mapping[str, Mapping[str, str]] = {
    "stranger": PUBLIC,
    "tensile_reader": PUBLIC,
    "demo": SHARED,
    "bob": SHARED | GRANTED,
    "monitor": MONITORED,
}
# Kinds of secrets of other roles that a role may read. None of them is made from training data.
VISIBLE_SECRETS: Mapping[str, frozenset[str]] = {
    "bob": frozenset({"model"}),
    "monitor": frozenset({"model", "error", "event", "figure", "key", "plan", "position"}),
}


@pytest.mark.nightly
def test_attacks_by_the_owner_read_every_kind_of_secret(database: Database) -> None:
    seen = {kind for report in _reports(database, OWNER) for kind, owner in report.leaked if owner == OWNER}

    assert seen == {"bundle", "classes", "error", "event", "figure", "key", "model", "plan", "report", "weights"}


@pytest.mark.parametrize("role", nightly_unless(lambda role: role == "bob", READABLE))
def test_role_reads_and_calls_only_what_it_is_for(database: Database, role: str) -> None:
    reports = _reports(database, role)

    answered = {_subject(report) for report in reports if report.outcome is Outcome.ROWS}
    leaks = {(kind, _subject(report)) for report in reports for kind, _ in report.leaked}
    assert answered == set(READABLE[role])
    assert {leak for leak in leaks if leak[0] not in VISIBLE_SECRETS.get(role, frozenset())} == set()
    _assert_harmless(reports)
    assert [name for report in reports for name in report.lost] == []


def test_owner_changes_and_reads_only_its_own_rows(database: Database) -> None:
    reports = _reports(database, OWNER, only_victims_losses=True)

    assert {owner for report in reports for _, owner in report.leaked} <= {OWNER}
    assert [(_subject(report), report.lost) for report in reports if report.lost] == []
    _assert_harmless(reports)


def _reports(database: Database, role: str, *, only_victims_losses: bool = False) -> list[AttackReport]:
    """Run every attack as the role and return the reports. With `only_victims_losses`, only changes of the victim's
    rows count.
    """
    create_owned_objects(database, VICTIM)
    with database.connect() as connection:
        before = State.now(connection)
        objects = create_owned_objects(database, OWNER)
        if not only_victims_losses:
            before = State.now(connection)
        reports = [run_attack(connection, role, attack, before) for attack in attacks(connection, objects)]
    count = Counter(report.outcome.value for report in reports)
    summary = ", ".join(f"{number} {outcome}" for outcome, number in sorted(count.items()))
    log.info("%s: %d statements, %s", role, len(reports), summary)  # shown by pytest --log-cli-level=info
    return reports


def _assert_harmless(reports: Iterable[AttackReport]) -> None:
    """Check that no statement locked a shared table, gave a row to another role, or changed a definition or grant."""
    assert {(report.attack.statement, name) for report in reports for name in report.locks} == set()
    assert {(report.attack.statement, name) for report in reports for name in report.given_away} == set()
    assert {report.attack.statement for report in reports if report.redefined} == set()


def _subject(report: AttackReport) -> str:
    """Return the attacked table, view or function, without the column."""
    target = report.attack.target
    if report.attack.kind in ("select column", "insert column", "update column"):
        target = target.rpartition(".")[0]
    return "tensile.training_request" if target.startswith("tensile.training_request(") else target
