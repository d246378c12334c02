"""Stores what jobs of each kind take besides their iterations on each kind of device, and how early they stop."""

from collections.abc import Sequence

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.queries import query
from indb_tensile.scheduler.admission.overheads import MOST_KINDS, KindOverheads, Overheads


def load_overheads(connection: Connection, device_kind: str) -> Overheads:
    """Load the times of the kinds of jobs that were measured last on this kind of device, the latest last."""
    rows = connection.execute(query("load_overheads"), {"device_kind": device_kind, "most": MOST_KINDS}).fetchall()
    return Overheads(
        kinds=tuple(
            KindOverheads(
                kind=kind,
                state_bytes=state_bytes,
                startup_ns=startup_ns,
                between_ns=between_ns,
                closing_ns=closing_ns,
                trained_share=trained_share,
            )
            for kind, state_bytes, startup_ns, between_ns, closing_ns, trained_share in rows
        )
    )


def save_overheads(connection: Connection, device_kind: str, kinds: Sequence[KindOverheads]) -> None:
    """Store the times of these kinds of jobs. Kinds beyond the number that a controller remembers are deleted."""
    values = {
        "device_kind": device_kind,
        "kinds": [times.kind for times in kinds],
        "state_bytes": [times.state_bytes for times in kinds],
        "startup_ns": [times.startup_ns for times in kinds],
        "between_ns": [times.between_ns for times in kinds],
        "closing_ns": [times.closing_ns for times in kinds],
        "trained_shares": [times.trained_share for times in kinds],
    }
    connection.execute(query("save_overheads"), values)
    connection.execute(query("forget_overheads"), {"device_kind": device_kind, "most": MOST_KINDS})
