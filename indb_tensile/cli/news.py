"""Which lines about jobs and devices are worth printing, where lines are printed one below the other."""

from dataclasses import dataclass, field

from indb_tensile.cli.output import Row
from indb_tensile.job import JobState, Phase

QUIET_S = 30.0  # between two lines about the same job in the same phase and the same tenth


@dataclass(frozen=True, slots=True, kw_only=True)
class _Printed:
    text: str
    mark: object
    at_s: float


@dataclass(slots=True, kw_only=True)
class News:
    """Remembers the last line printed about each job and each device."""

    printed: dict[str, _Printed] = field(default_factory=dict)

    def is_news(self, about: str, text: str, mark: object, now_s: float) -> bool:
        """Whether to print this line: its mark is new, or the text is and the last line is `QUIET_S` old."""
        last = self.printed.get(about)
        if last is not None and last.mark == mark and (last.text == text or now_s < last.at_s + QUIET_S):
            return False
        self.printed[about] = _Printed(text=text, mark=mark, at_s=now_s)
        return True


def mark_of(job: Row) -> tuple[object, ...]:
    """What of a job is worth a line at once: its state, its phase, the tenths that are done.

    Training and validation take turns every epoch, so they count as one phase.
    """
    phase = Phase.TRAINING if job["phase"] == Phase.VALIDATING else job["phase"]
    tenths = None if job["percent"] is None or job["state"] != JobState.RUNNING else int(float(job["percent"]) // 10)
    return job["state"], phase, tenths
