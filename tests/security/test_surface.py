"""Every role against everything that the catalog offers: nobody sees, changes, locks or takes what is another's."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping

import pytest

from tests.conftest import Database
from tests.security.estate import OWNER, VICTIM, settle
from tests.security.siege import Outcome, Report, State, besiege
from tests.security.surface import attacks

log = logging.getLogger(__name__)

pytestmark = pytest.mark.postgres

# What every role may call.
ANYBODY = {"tensile_require_role(name)": "nothing, or an error where the caller is no member of the role"}
# What an ordinary user may read or call although none of it is the user's own, and why.
SHARED = ANYBODY | {
    "tensile.active_jobs()": "counts of jobs by controller, without names: why a job waits",
    "tensile.bridge(text,jsonb,jsonb[])": "checks privileges itself; the errors of its requests are answers",
    "tensile.catalog_digest()": "which source the catalog was made from",
    "tensile.catalog_version()": "which version the catalog has",
    "tensile.check_row_size(anycompatible,bigint)": "measures the caller's own argument",
    "tensile.current_role_oid()": "the caller's own oid",
    "tensile.devices": "memory of devices, all jobs together: whether a training would start now",
    "tensile.follow_job(bigint,text)": "nothing of a job that the caller does not see",
    "tensile.installation()": "which database this is",
    "tensile.intake()": "how many controllers, places and jobs there are, and what the next job waits for",
    "tensile.key_text(anyelement)": "writes the caller's own argument",
    "tensile.known_settings()": "names and defaults of settings",
    "tensile.models": "a model of the caller's own can be made",
    "tensile.numbers_of(jsonb)": "reads the caller's own argument",
    "tensile.owners_at_limit(integer,oid)": "counts the jobs that the caller sees",
    "tensile.queue_positions(bigint[])": "how many jobs are before a job, without names",
    "tensile.quota_of(oid)": "defaults, and the quota of the caller's own role",
    "tensile.row_bytes(anyelement)": "measures the caller's own argument",
    "tensile.row_form(regtype)": "tells of the caller's own argument",
    "tensile.row_json(anyelement)": "writes the caller's own argument",
    "tensile.setting(text)": "a setting's value",
    "tensile.setting_list": "all settings: how long rows are kept, how large snapshots may be",
    "tensile.spec_fault(jsonb)": "checks the caller's own argument",
    "tensile.stat_device": "see tensile.devices",
    "tensile.stat_workers": "see tensile.workers",
    "tensile.training_request": "puts its arguments into one JSON object",
    "tensile.try_commit(boolean)": "commits the caller's own transaction",
    "tensile.workers": "controllers and their services: where predictions are asked for",
    "tensile_check()": "what is missing for trainings and predictions",
    "tensile_version()": "which version the catalog has",
}
# What a grant to predict adds.
GRANTED = {
    "tensile.model_list": "the model's name, its versions and their metrics",
    "tensile.model_privileges": "the grant itself",
    "tensile.model_versions": "what a prediction is made with: task, target, metrics",
    "tensile.models": "the model's name and owner",
    "tensile_training_info(text)": "the versions of a model",
}
# What monitors read: everything of jobs and models, except what is made of training data.
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
        *("tensile.quota_use()", "tensile.setting(text)", "tensile.setting_list", "tensile.stat_quotas"),
        *("tensile.training_request", "tensile_require_role(name)", "tensile_version()"),
    ),
    "monitors see every job, model, plan and device",
)
ANSWERED: Mapping[str, Mapping[str, str]] = {
    "stranger": ANYBODY,
    "tensile_reader": ANYBODY,
    "demo": SHARED,
    "bob": SHARED | GRANTED,
    "monitor": MONITORED,
}
# Kinds of secrets that a role may read of others. Nothing that is made of training data is among them.
SEEN: Mapping[str, frozenset[str]] = {
    "bob": frozenset({"model"}),
    "monitor": frozenset({"model", "error", "event", "figure", "key", "plan", "position"}),
}


def test_the_owner_sees_all_that_the_attacks_look_for(database: Database) -> None:
    seen = {kind for report in _reports(database, OWNER) for kind, owner in report.leaked if owner == OWNER}

    assert seen == {"bundle", "error", "event", "figure", "key", "model", "plan", "report", "weights"}


@pytest.mark.parametrize("role", ANSWERED)
def test_nobody_gets_an_answer_beyond_what_the_role_is_for(database: Database, role: str) -> None:
    reports = _reports(database, role)

    answered = {_subject(report) for report in reports if report.outcome is Outcome.ROWS}
    leaks = {(kind, _subject(report)) for report in reports for kind, _ in report.leaked}
    assert answered == set(ANSWERED[role])
    assert {leak for leak in leaks if leak[0] not in SEEN.get(role, frozenset())} == set()
    _assert_harmless(reports)
    assert [name for report in reports for name in report.lost] == []


def test_an_owner_changes_and_reads_only_what_is_its_own(database: Database) -> None:
    reports = _reports(database, OWNER, others=True)

    assert {owner for report in reports for _, owner in report.leaked} <= {OWNER}
    assert [(_subject(report), report.lost) for report in reports if report.lost] == []
    _assert_harmless(reports)


def _reports(database: Database, role: str, *, others: bool = False) -> list[Report]:
    """What comes of every attack by the role. `others`: only losses of the victim's rows count."""
    settle(database, VICTIM)
    with database.connect() as connection:
        before = State.now(connection)
        estate = settle(database, OWNER)
        if not others:
            before = State.now(connection)
        reports = [besiege(connection, role, attack, before) for attack in attacks(connection, estate)]
    count = Counter(report.outcome.value for report in reports)
    told = ", ".join(f"{number} {outcome}" for outcome, number in sorted(count.items()))
    log.info("%s: %d statements, %s", role, len(reports), told)  # pytest --log-cli-level=info shows it
    return reports


def _assert_harmless(reports: Iterable[Report]) -> None:
    """No statement locks a shared table, gives a row to another role, or changes a definition or a grant."""
    assert {(report.attack.statement, name) for report in reports for name in report.locks} == set()
    assert {(report.attack.statement, name) for report in reports for name in report.strangers} == set()
    assert {report.attack.statement for report in reports if report.redefined} == set()


def _subject(report: Report) -> str:
    """The table, view or function, without the column."""
    target = report.attack.target
    if report.attack.kind in ("select column", "insert column", "update column"):
        target = target.rpartition(".")[0]
    return "tensile.training_request" if target.startswith("tensile.training_request(") else target
