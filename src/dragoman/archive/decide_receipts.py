"""What receipts change: the decision alone, for both databases.

The database gives the rows that may change, as they are under its lock; this says which receipt raises which of them.
Applying several receipts here gives what applying them one by one would have given.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dragoman.archive.types import Applied, Receipt, Status, Stored

# The messages of one conversation to one of its members.
Lane = tuple[int, int]


def lane(message: Stored) -> Lane:
    return message.conversation, message.to_user


@dataclass(frozen=True, slots=True)
class Reach:
    """How far into each lane the receipts reach; `read_upto` is 0 where nothing is read."""

    read_upto: Mapping[Lane, int]
    ids: Sequence[int]


def reach(given: Iterable[Receipt], named: Mapping[int, Stored]) -> Reach:
    """`named`: the rows that the receipts name, whatever their status was when they were looked up."""
    upto: dict[Lane, int] = {}
    ids: dict[int, None] = {}
    for receipt in given:
        for number in receipt.ids:
            message = named.get(number)
            if message is None or message.to_user != receipt.acker:
                continue
            ids[number] = None
            seq = message.seq if receipt.status is Status.READ else 0
            upto[lane(message)] = max(upto.get(lane(message), 0), seq)
    return Reach(upto, list(ids))


class ReceiptDecision:
    """Receipts applied in order to `rows`: those named, and what is not yet read below a READ."""

    def __init__(self, rows: Iterable[Stored]) -> None:
        self._now = {message.id: message for message in rows}
        self._lanes: dict[Lane, list[int]] = defaultdict(list)
        for message in sorted(self._now.values(), key=lambda message: message.seq):
            self._lanes[lane(message)].append(message.id)
        self._raised: dict[int, None] = {}

    def apply(self, receipt: Receipt) -> Applied:
        missing, not_allowed, changed = [], [], []
        for number in dict.fromkeys(receipt.ids):
            message = self._now.get(number)
            if message is None:
                missing.append(number)
            elif message.to_user != receipt.acker:
                not_allowed.append(number)
            else:
                changed += self._raise(message, receipt.status)
        changed.sort(key=lambda message: (message.conversation, message.seq))
        return Applied(missing, not_allowed, changed)

    def _raise(self, message: Stored, status: Status) -> list[Stored]:
        raised = self._read_below(message) if status is Status.READ else []
        if message.status < status:
            raised.append(self._set(message.id, status))
        return raised

    def _read_below(self, message: Stored) -> list[Stored]:
        unread = self._lanes[lane(message)]
        end = bisect_left(unread, message.seq, key=lambda number: self._now[number].seq)
        below = unread[:end]
        # Each is visited once: what stays was never delivered.
        unread[:end] = [number for number in below if self._now[number].status is Status.SAVED]
        return [self._set(number, Status.READ) for number in below if self._now[number].status is Status.DELIVERED]

    def _set(self, number: int, status: Status) -> Stored:
        self._now[number] = replace(self._now[number], status=status)
        self._raised[number] = None
        return self._now[number]

    @property
    def raised(self) -> list[Stored]:
        """What has to be written, as it is now."""
        return [self._now[number] for number in self._raised]
