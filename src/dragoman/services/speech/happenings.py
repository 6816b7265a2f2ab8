"""What can happen to a job besides what its node says of it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lost:
    """The node of one attempt is gone, or the assignment found nobody.

    Losses are heard more than once, and what was said of an earlier attempt must not end the one under way.
    """

    reason: str
    attempt: int
    grace_s: float = 0.0  # how long the node may take to come back with its result, if no other node is free
    delivered: bool = True  # False: the node never had the job


@dataclass(frozen=True, slots=True)
class AnotherFree:
    """The job waits for its lost node, and another node has a free slot."""

    attempt: int


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


Happening = Lost | AnotherFree | Cancelled | TurnOver | Overtaken
