"""When Redis cannot take a message, and what is known then of the message."""

from dragoman.archive import NewMessage
from dragoman.store.errors import Refused

# Errors of Redis that mean it cannot work now; any other is a bug of ours.
WORDS = frozenset({"LOADING", "READONLY", "CLUSTERDOWN", "OOM", "MASTERDOWN", "NOREPLICAS", "MISCONF", "TRYAGAIN"})


class Unusable(Exception):
    """Redis did not accept `row`; or, `perhaps`, it did, and did not say so in time.

    `ours`: it was not Redis that took so long. We or another instance stood still, and the others may have gone on.
    """

    def __init__(self, why: str, row: NewMessage, *, perhaps: bool = False, ours: bool = False) -> None:
        super().__init__(why)
        self.row, self.perhaps, self.ours = row, perhaps, ours


def cannot_work(error: Refused) -> bool:
    """Not by its first word alone: Redis 6.2 puts words of its own before what a command says inside a script."""
    return error.word in WORDS or any(f" -{word} " in str(error) for word in WORDS)
