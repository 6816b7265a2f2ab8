"""The turn: one uninterrupted stretch of speech towards one language, kept on one node.

The first job of a turn that finds a node binds the turn to it, once. Later jobs get that node if they can; otherwise
they are placed freely and bind nothing. A cut that is a whole turn of its own binds nothing. There is no TTL, no
second field, and no inheritance from one turn to the next.

The segmenter decides where turns begin and end, `placement` whether a job can have the turn's node. The owner of the
session keeps this record between the two.
"""

from dataclasses import dataclass
from enum import StrEnum, auto


class AffinityResult(StrEnum):
    HIT = auto()
    FIRST = auto()  # the turn continues and has no node yet
    OFFLINE = auto()
    NOT_IN_POOL = auto()  # connected, but some filter of this job refuses it
    FULL = auto()  # beyond its slots and the overcommit


def should_bind_job_to_node(begins_turn: bool, ends_turn: bool) -> bool:
    """Whether placing this job binds its turn: it is the first that found a node, and more of the turn may follow."""
    return begins_turn and not ends_turn


@dataclass(slots=True)
class Turn:
    id: str
    node_id: str | None = None
    ended: bool = False

    def placed(self, node_id: str, ends_turn: bool) -> bool:
        """A job of the turn has a node. True: this binds the turn, to be written before the next job is placed."""
        if not should_bind_job_to_node(self.node_id is None and not self.ended, ends_turn):
            return False
        self.node_id = node_id
        return True

    def end(self) -> None:
        """The last job of the turn was placed: later jobs are placed freely."""
        self.ended = True
        self.node_id = None


def affinity(*, connected: bool, eligible: bool, has_room: bool) -> AffinityResult:
    """Whether a later job gets the turn's node. Without a hit it is placed freely."""
    if not connected:
        return AffinityResult.OFFLINE
    if not eligible:
        return AffinityResult.NOT_IN_POOL
    return AffinityResult.HIT if has_room else AffinityResult.FULL
