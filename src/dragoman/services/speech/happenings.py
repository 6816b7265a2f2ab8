"""What can happen to a job besides what its node says of it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lost:
    """The node of one attempt is gone, or the assignment found nobody.

    Losses are heard more than once, and what was said of an earlier attempt must not end the one under way.
    """

    reason: str
    attempt: int
    grace_s: float = 0.0  # for which the node may come back with what it finished
    delivered: bool = True  # False: the node never had the job


@dataclass(frozen=True, slots=True)
class Cancelled:
    reason: str


@dataclass(frozen=True, slots=True)
class TurnOver:
    """The job's turn has ended: what an old node kept back, it need not keep any longer."""


@dataclass(frozen=True, slots=True)
class Overtaken:
    """Its node has answered a later job of the turn, so it is done with this one."""

    attempt: int


Happening = Lost | Cancelled | TurnOver | Overtaken
