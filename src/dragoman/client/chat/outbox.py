"""Messages of ours that are not known to be saved, and which of them is to be said next. Pure: time is an argument.

    add ──▶ todo ──next──▶ flying ──accepted──▶ (said) ──saved──▶ gone
             ▲                │                    │
             └── busy, lost connection, no word for `again_s`

- They are said in the order they were added, `in_flight` at a time. With one at a time the order holds whatever the
  server answers; with more, one that is refused for now may end up behind those said after it.
- What is said again is said with the same clientMsgId: the server answers what it answered before, and what became of
  it since. So after a lost connection all that is not known to be saved is said again, accepted or not.
"""

import heapq
from itertools import islice

from dragoman.client.backoff import Backoff
from dragoman.client.chat.sent import Sent


class Outbox:
    def __init__(self, backoff: Backoff, in_flight: int = 1, again_s: float = 20.0) -> None:
        self._backoff = backoff
        self._in_flight = in_flight
        self._again_s = again_s
        self._unsaved: dict[str, Sent] = {}
        self._todo: list[tuple[int, Sent]] = []  # a heap by number
        self._flying: set[str] = set()
        self._said: dict[str, float] = {}  # when, longest ago first
        self._not_before = float("-inf")

    def __len__(self) -> int:
        return len(self._unsaved)

    def __contains__(self, client_msg_id: str) -> bool:
        return client_msg_id in self._unsaved

    def unsaved(self) -> list[Sent]:
        return list(self._unsaved.values())

    def add(self, sent: Sent) -> None:
        self._unsaved[sent.client_msg_id] = sent
        heapq.heappush(self._todo, (sent.number, sent))

    def next(self, now: float) -> Sent | None:
        """What may be said now; it counts as said."""
        self._take_up_overdue(now)
        if now < self._not_before or len(self._flying) >= self._in_flight:
            return None
        while self._todo:
            sent = heapq.heappop(self._todo)[1]
            if sent.client_msg_id in self._unsaved:
                self._flying.add(sent.client_msg_id)
                self._said.pop(sent.client_msg_id, None)
                self._said[sent.client_msg_id] = now
                return sent
        return None

    def due_at(self) -> float | None:
        """When `next` may have something that it has not now, if nobody says anything."""
        times = [at + self._again_s for at in islice(self._said.values(), 1)]
        if self._todo and len(self._flying) < self._in_flight:
            times.append(self._not_before)
        return min(times, default=None)

    # ------------------------------------------------------------ what the server answered

    def accepted(self, client_msg_id: str) -> Sent | None:
        """The message, if it is one of these."""
        sent = self._unsaved.get(client_msg_id)
        if sent is not None:
            self._flying.discard(client_msg_id)
            self._backoff.lasted(float("inf"))
        return sent

    def done(self, client_msg_id: str) -> Sent | None:
        """Saved, or never going to be."""
        self._flying.discard(client_msg_id)
        self._said.pop(client_msg_id, None)
        self._backoff.lasted(float("inf"))
        return self._unsaved.pop(client_msg_id, None)

    def busy(self, client_msg_id: str, now: float) -> bool:
        """Not now: again, after a pause that grows while the answer stays the same. False: not one of these."""
        sent = self._unsaved.get(client_msg_id)
        if sent is None or client_msg_id not in self._flying:
            return sent is not None
        self._put_back(sent)
        self._not_before = now + self._backoff.delay_s()
        return True

    def lost(self) -> None:
        """The connection is gone, and with it whatever was on its way in either direction."""
        self._todo = [(sent.number, sent) for sent in self._unsaved.values()]
        heapq.heapify(self._todo)
        self._flying.clear()
        self._said.clear()
        self._not_before = float("-inf")

    def _take_up_overdue(self, now: float) -> None:
        while self._said:
            client_msg_id, said = next(iter(self._said.items()))
            if now < said + self._again_s:
                return
            self._put_back(self._unsaved[client_msg_id])

    def _put_back(self, sent: Sent) -> None:
        self._flying.discard(sent.client_msg_id)
        self._said.pop(sent.client_msg_id, None)
        heapq.heappush(self._todo, (sent.number, sent))
