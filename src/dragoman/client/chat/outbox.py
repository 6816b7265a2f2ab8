"""What must be sent, what is known of what was sent, and what was received. Pure: the time is an argument.

Outbox           our messages that are not known to be saved, and which is sent next
PendingReceipts  receipts for messages to us that were not sent yet
SentReceipts     receipts of the receivers, matched to our messages
Inbox            messages to this user that were not read yet
Translations     requests for translations that have no answer yet
"""

import asyncio
import heapq
from collections import OrderedDict, deque
from enum import Enum, auto
from itertools import islice, takewhile

from dragoman.client.chat.messages import FORGOTTEN, ChatClosed, ChatError, Message, Sent, Translation
from dragoman.connection import Backoff, ReceiveQueue
from dragoman.protocol import chat as wire
from dragoman.protocol.chat import AckType

MAX_EARLY_RECEIPTS = 1000
_BY_RECEIVER = (AckType.DELIVERED, AckType.READ)


class Outbox:
    """Our messages that are not known to be saved.

        add ──▶ to send ──next──▶ in flight ──accepted──▶ sent ──saved──▶ removed
                  ▲                   │                     │
                  └── server busy, connection lost, not saved within `resend_s`

    Messages are sent in the order they were added, `in_flight` at a time. With one at a time the order always holds;
    with more, a message that the server was too busy for may end up behind later ones.

    A message is resent with the same clientMsgId, so the server recognises it and repeats its answer. After a lost
    connection every message that is not known to be saved is resent, accepted or not.
    """

    def __init__(self, backoff: Backoff, in_flight: int = 1, resend_s: float = 20.0) -> None:
        self._backoff = backoff
        self._max_in_flight = in_flight
        self._resend_s = resend_s
        self._unsaved: dict[str, Sent] = {}
        self._to_send: list[tuple[int, Sent]] = []  # a heap by number
        self._in_flight: set[str] = set()
        self._sent_at: dict[str, float] = {}  # oldest first
        self._not_before = float("-inf")

    def __len__(self) -> int:
        return len(self._unsaved)

    def __contains__(self, client_msg_id: str) -> bool:
        return client_msg_id in self._unsaved

    def unsaved(self) -> list[Sent]:
        return list(self._unsaved.values())

    def add(self, sent: Sent) -> None:
        self._unsaved[sent.client_msg_id] = sent
        heapq.heappush(self._to_send, (sent.number, sent))

    def next(self, now: float) -> Sent | None:
        """The message to send now; it counts as sent."""
        self._requeue_overdue(now)
        if now < self._not_before or len(self._in_flight) >= self._max_in_flight:
            return None
        while self._to_send:
            sent = heapq.heappop(self._to_send)[1]
            if sent.client_msg_id in self._unsaved:
                self._in_flight.add(sent.client_msg_id)
                self._sent_at.pop(sent.client_msg_id, None)
                self._sent_at[sent.client_msg_id] = now
                return sent
        return None

    def due_at(self) -> float | None:
        """When `next` may return a message that it does not return now, if the server sends nothing."""
        times = [at + self._resend_s for at in islice(self._sent_at.values(), 1)]
        if self._to_send and len(self._in_flight) < self._max_in_flight:
            times.append(self._not_before)
        return min(times, default=None)

    # ------------------------------------------------------------ answers of the server

    def accepted(self, client_msg_id: str) -> Sent | None:
        """Returns the message; None if it is unknown or already saved."""
        sent = self._unsaved.get(client_msg_id)
        if sent is not None:
            self._in_flight.discard(client_msg_id)
            self._backoff.lasted(float("inf"))
        return sent

    def done(self, client_msg_id: str) -> Sent | None:
        """The message was saved, or never will be. Returns it; None if it is unknown."""
        self._in_flight.discard(client_msg_id)
        self._sent_at.pop(client_msg_id, None)
        self._backoff.lasted(float("inf"))
        return self._unsaved.pop(client_msg_id, None)

    def busy(self, client_msg_id: str, now: float) -> bool:
        """The server was too busy: resend after a delay that grows with each such answer. False: unknown message."""
        sent = self._unsaved.get(client_msg_id)
        if sent is None or client_msg_id not in self._in_flight:
            return sent is not None
        self._requeue(sent)
        self._not_before = now + self._backoff.delay_s()
        return True

    def lost(self) -> None:
        """The connection is gone: messages and answers may have been lost with it."""
        self._to_send = [(sent.number, sent) for sent in self._unsaved.values()]
        heapq.heapify(self._to_send)
        self._in_flight.clear()
        self._sent_at.clear()
        self._not_before = float("-inf")

    def _requeue_overdue(self, now: float) -> None:
        while self._sent_at:
            client_msg_id, sent_at = next(iter(self._sent_at.items()))
            if now < sent_at + self._resend_s:
                return
            self._requeue(self._unsaved[client_msg_id])

    def _requeue(self, sent: Sent) -> None:
        self._in_flight.discard(sent.client_msg_id)
        self._sent_at.pop(sent.client_msg_id, None)
        heapq.heappush(self._to_send, (sent.number, sent))


class PendingReceipts:
    """Receipts for messages to us that were not sent yet, as frames, oldest first. At most `max_pending`.

    A server does not answer receipts, so those sent on a connection that is gone may be lost. *Delivered* needs no
    memory: the server sends the message again. The highest *read* for each sender is resent, and covers all before it.
    Only the `remember` senders read last are remembered: receipts are sent before messages, and too many would delay
    the messages after every reconnect.
    """

    def __init__(self, max_pending: int = 10_000, remember: int = 100) -> None:
        self._pending: deque[bytes] = deque(maxlen=max_pending)
        self._remember = remember
        self._read: dict[int, int] = {}  # highest serverMsgId by sender; the sender read last is last

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, receipt: AckType, server_msg_id: int, sender: int) -> None:
        self._pending.append(wire.receipt(receipt, server_msg_id, sender))
        if receipt is AckType.READ:
            self._read[sender] = max(server_msg_id, self._read.pop(sender, 0))
            if len(self._read) > self._remember:
                del self._read[next(iter(self._read))]

    def next(self) -> bytes | None:
        """The frame to send now; it counts as sent."""
        return self._pending.popleft() if self._pending else None

    def lost(self) -> None:
        """The connection is gone: receipts may have been lost with it."""
        pending = set(self._pending)
        again = (wire.receipt(AckType.READ, id, sender) for sender, id in self._read.items())
        self._pending.extend(frame for frame in again if frame not in pending)


class SentReceipts:
    """Matches receipts of receivers to our messages.

    - A receipt covers all earlier messages to that receiver: a server reports only the highest.
    - The newest `remember` messages are known by serverMsgId. Older ones get no more receipts.
    - A receipt may arrive before the *accepted* of its message, if two servers send them. It is kept until then.
    """

    def __init__(self, remember: int = 10_000) -> None:
        self._remember = remember
        self._sent: OrderedDict[int, Sent] = OrderedDict()  # by serverMsgId; those that are not read
        # Messages without the receipt, by receiver; serverMsgIds rise, so the lowest is first.
        self._without: dict[AckType, dict[int, dict[int, Sent]]] = {receipt: {} for receipt in _BY_RECEIVER}
        self._early: OrderedDict[int, AckType] = OrderedDict()

    def identify(self, sent: Sent, server_msg_id: int) -> None:
        """The server assigned an id to a message."""
        if sent.server_msg_id == server_msg_id or sent.read:
            return
        if sent.server_msg_id is not None:
            self._remove(sent.server_msg_id)
        sent.identify(server_msg_id)
        self._sent[server_msg_id] = sent
        for receipt in _BY_RECEIVER:
            self._without[receipt].setdefault(sent.to, {})[server_msg_id] = sent
        early = self._early.pop(server_msg_id, None)
        if early is not None:
            self.receive(early, sent.to, server_msg_id)
        if len(self._sent) > self._remember:
            oldest = self._remove(next(iter(self._sent)))
            oldest.end(ChatClosed(FORGOTTEN, "too many messages were sent since to track its receipts"))

    def receive(self, receipt: AckType, from_user: int | None, server_msg_id: int) -> None:
        """`from_user` confirms this message and all before it as delivered or read."""
        sent = self._sent.get(server_msg_id)
        if sent is None:
            self._keep_early(receipt, server_msg_id)
            return
        if from_user is not None and from_user != sent.to:
            return
        without = self._without[receipt].get(sent.to, {})
        for id in list(takewhile(lambda id: id <= server_msg_id, without)):
            one = self._sent[id]
            if receipt is AckType.READ:
                self._remove(id)  # no receipt follows *read*
            else:
                del without[id]
            one.add_receipt(receipt)

    def all(self) -> list[Sent]:
        return list(self._sent.values())

    def _remove(self, server_msg_id: int) -> Sent:
        sent = self._sent.pop(server_msg_id)
        for without in self._without.values():
            theirs = without.get(sent.to, {})
            theirs.pop(server_msg_id, None)
            if not theirs:
                without.pop(sent.to, None)
        return sent

    def _keep_early(self, receipt: AckType, server_msg_id: int) -> None:
        if self._early.get(server_msg_id) is not AckType.READ:
            self._early[server_msg_id] = receipt
        if len(self._early) > MAX_EARLY_RECEIPTS:
            self._early.popitem(last=False)


# -- inbox -----------------------------------------------------------------------------------------
#
# Messages to this user, between the socket, which cannot wait, and the reader. Each is read once.
#
# - Duplicates are recognised by serverMsgId, among the last `remember` messages. A duplicate of a message that was read
#   is acknowledged again: the server repeats a message only if it did not get the receipt.
# - At most `max_unread` messages wait. When there is no room, the inbox *overflows* and accepts nothing more, not even
#   when there is room again: later messages would overtake those that it refused. On the next connection the server
#   sends everything again that was not acknowledged; `should_reconnect` says when there is enough room for that.


class Put(Enum):
    """What became of a message."""

    NEW = auto()
    UNREAD_DUPLICATE = auto()
    READ_DUPLICATE = auto()
    NO_ROOM = auto()


class Inbox(ReceiveQueue[Message]):
    def __init__(self, max_unread: int = 1000, remember: int = 10_000) -> None:
        super().__init__()
        self._max_unread = max_unread
        self._remember = max(remember, max_unread)
        self._was_read: dict[int, bool] = {}  # by serverMsgId, oldest first
        self._overflowed = False

    @property
    def should_reconnect(self) -> bool:
        return self._overflowed and len(self) <= self._max_unread // 2

    def reconnected(self) -> None:
        """The server sends everything again that was not acknowledged."""
        self._overflowed = False

    def put(self, message: Message) -> Put:
        was_read = self._was_read.get(message.server_msg_id)
        if was_read is not None:
            return Put.READ_DUPLICATE if was_read else Put.UNREAD_DUPLICATE
        if self._overflowed or len(self) >= self._max_unread:
            self._overflowed = True
            return Put.NO_ROOM
        self._was_read[message.server_msg_id] = False
        if len(self._was_read) > self._remember:
            del self._was_read[next(iter(self._was_read))]
        self._add(message)
        return Put.NEW

    async def get(self) -> Message | None:
        message = await super().get()
        if message is not None and message.server_msg_id in self._was_read:
            self._was_read[message.server_msg_id] = True
        return message


Key = tuple[int, str]


class Translations:
    """Requests are sent again after a reconnect, because the answer may have been lost."""

    def __init__(self) -> None:
        self._waiting: dict[Key, asyncio.Future[Translation]] = {}
        self._unsent: deque[Key] = deque()

    def __len__(self) -> int:
        """Requests that are to be sent."""
        return len(self._unsent)

    def ask(self, server_msg_id: int, lang: str) -> "asyncio.Future[Translation]":
        key = (server_msg_id, lang)
        if key not in self._waiting:
            self._waiting[key] = asyncio.get_running_loop().create_future()
            self._unsent.append(key)
        return self._waiting[key]

    def forget(self, server_msg_id: int, lang: str) -> None:
        self._waiting.pop((server_msg_id, lang), None)

    def next(self) -> bytes | None:
        while self._unsent:
            key = self._unsent.popleft()
            if key in self._waiting:
                return wire.translate(*key)
        return None

    def lost(self) -> None:
        self._unsent = deque(self._waiting)

    def received(self, translation: Translation) -> None:
        waiting = self._waiting.pop((translation.server_msg_id, translation.lang), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(translation)

    def refused(self, server_msg_id: int, reason: str) -> bool:
        """The server answered with an error. False: nothing was asked about this message."""
        keys = [key for key in self._waiting if key[0] == server_msg_id]
        for key in keys:
            self.received(Translation(*key, reason=reason))
        return bool(keys)

    def end(self, error: ChatError) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(error)
                waiting.exception()  # nobody may be waiting
        self._waiting.clear()
        self._unsent.clear()
