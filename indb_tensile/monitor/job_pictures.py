"""Pictures of a job: the memory that its plan gives each tensor over one iteration, and how it learns."""

from indb_tensile.catalog import traces
from indb_tensile.catalog.connection import Connection
from indb_tensile.errors import MissingError
from indb_tensile.monitor.learning_picture import learning_picture
from indb_tensile.monitor.live_figures import rows
from indb_tensile.monitor.plan_picture import PlannedStep, plan_picture
from indb_tensile.monitor.svg_drawing import Theme


def job_plan_picture(connection: Connection, job: int, theme: Theme = Theme.AUTO) -> str:
    """Return the picture of the newest plan of a job as SVG. Raises MissingError if there is none."""
    jobs = rows(connection, "picture_subject", job=job)
    if not jobs:
        raise MissingError(f"there is no job {job}", hint="Jobs of other users are not shown.")
    document, followed = traces.load_job_graph(connection, job), traces.load_job_plans(connection, job)
    if document is None or document.latency_ns is None or not followed:
        raise MissingError(
            f"job {job} has no plan that can be drawn",
            hint="A job has a plan once it trains a network; a job of an older version has no stored graph.",
        )
    newest = followed[-1]
    step = PlannedStep(
        title=f"Job {job}: {jobs[0]['model']}, plan {newest.attempt}.{newest.generation} of policy {newest.policy}",
        graph=document.graph,
        latency_ns=document.latency_ns,
        plan=newest.plan,
        limit_bytes=jobs[0]["granted_bytes"] or newest.peak_bytes,
        limit_name="granted" if jobs[0]["granted_bytes"] else "planned peak of all steps",
    )
    return plan_picture(step, theme)


def job_learning_picture(connection: Connection, job: int, theme: Theme = Theme.AUTO) -> str:
    """Return the picture of a job's losses, metrics and learning rate as SVG. Raises MissingError without epochs."""
    jobs = rows(connection, "picture_subject", job=job)
    if not jobs:
        raise MissingError(f"there is no job {job}", hint="Jobs of other users are not shown.")
    epochs = rows(connection, "epochs", job=job, most=None)
    if not epochs:
        raise MissingError(f"job {job} has finished no epoch yet", hint="Draw it after its first epoch.")
    return learning_picture(f"Job {job}: {jobs[0]['model']}", epochs, theme)
