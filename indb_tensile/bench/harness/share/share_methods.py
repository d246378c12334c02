"""The methods that `bench share` compares: the settings of the controller that runs the jobs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from indb_tensile.errors import MissingError

TURNS = "turns"
FIRST_FIT = "first_fit"
ANY_PRICE = "any_price"
COMPLETION = "completion"
UNLIMITED = "unlimited"  # first fit in a memory for all jobs: the throughput that plans are compared with
RIVALS = (TURNS, FIRST_FIT, ANY_PRICE)
_SHARING = "sharing"  # the setting by which a controller decides who runs beside whom


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareMethod:
    """One way to run a set of jobs. `policy` makes the plans; `max_jobs` is None for as many as there are."""

    name: str
    policy: str
    max_jobs: int | None = None
    sharing: str = ANY_PRICE

    def settings(self, jobs: int, known: Collection[str]) -> Mapping[str, object]:
        """Return the controller's settings for that many jobs. `known` are the names of all settings.

        There is one place more than jobs, because an owner may have all places but one (tensile.quota_of).
        """
        places = max(8, jobs + 1) if self.max_jobs is None else self.max_jobs
        chosen: dict[str, object] = {"policy": self.policy, "max_jobs": places}
        return chosen | ({_SHARING: self.sharing} if _SHARING in known else {})


TURNS_METHOD = ShareMethod(name=TURNS, policy="liveness", max_jobs=1)
METHODS = (
    TURNS_METHOD,
    ShareMethod(name=FIRST_FIT, policy="liveness"),
    ShareMethod(name=ANY_PRICE, policy="tensile+"),
    ShareMethod(name=COMPLETION, policy="tensile+", sharing=COMPLETION),
)
WITHOUT_LIMIT = ShareMethod(name=UNLIMITED, policy="liveness")


def available(known: Collection[str], names: Sequence[str] = ()) -> tuple[ShareMethod, ...]:
    """Return the methods of these names, or all, that a controller with the settings `known` can follow.

    Raises MissingError for a name that is no method, or one that this version's controller cannot follow.
    """
    methods = {method.name: method for method in METHODS if method.name != COMPLETION or _SHARING in known}
    for name in names:
        if name not in methods:
            raise MissingError(
                f"there is no method '{name}'"
                if name != COMPLETION
                else f"the controller has no setting '{_SHARING}'",
                hint=f"Methods are: {', '.join(methods)}.",
            )
    return tuple(method for name, method in methods.items() if not names or name in names)
