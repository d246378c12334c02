"""Records what a chaos test has done and seen so far, for its report and for the case that a signal ends it."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from indb_tensile.bench.harness.chaos.chaos_client import Client


@dataclass(slots=True, kw_only=True)
class ChaosProgress:
    """The events, recoveries and predictions of a chaos test up to now."""

    planned: int  # events
    events: Counter[str] = field(default_factory=Counter)  # by kind
    longest_recovery_s: float = 0.0
    slowest: str = ""  # kind of the event with that recovery
    not_recovered: int = 0
    client: Client | None = None  # None before the undisturbed runs have ended

    def record_recovery(self, kind: str, recovery_s: float) -> None:
        """Record the seconds in which the system recovered from an event of this kind."""
        if recovery_s > self.longest_recovery_s:
            self.longest_recovery_s, self.slowest = recovery_s, kind

    def event_figures(self) -> dict[str, Any]:
        """Return the report's figures of events and recoveries."""
        return {
            "events": self.events.total(),
            "events_by_kind": dict(self.events),
            "longest_recovery_s": self.longest_recovery_s,
            "slowest_to_recover_from": self.slowest,
            "not_recovered": self.not_recovered,
        }

    def prediction_figures(self) -> dict[str, Any]:
        """Return the report's figures of predictions; none before the client exists."""
        client = self.client
        if client is None:
            return {}
        return {
            "predictions": client.answers,
            "wrong_predictions": len(client.wrong),
            "prediction_faults": len(client.faults),
            "prediction_errors": dict(client.errors),
            "longest_prediction_s": round(client.longest_s, 2),
            "first_faults": [*client.wrong, *client.faults][:5],
        }

    def interruption(self, cause: str) -> str:
        """Return the sentence for a test that this signal has ended."""
        return (
            f"{cause} ended the chaos test after {self.events.total()} of {self.planned} events; "
            "the bits and endings of its jobs and what it left behind were not checked"
        )
