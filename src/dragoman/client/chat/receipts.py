"""Receipts of the receivers, brought to the messages they are of. Pure.

- A receipt counts for what was sent to that receiver before it as well: a server tells only the highest.
- The newest `remember` messages are known by their serverMsgId; of older ones no more receipts are told.
- A receipt may overtake the *accepted* of its message, when two servers tell them: it is kept until that comes.
"""

from collections import OrderedDict
from itertools import takewhile

from dragoman.client.chat.errors import FORGOTTEN, ChatOver
from dragoman.client.chat.sent import Sent
from dragoman.protocol.chat import AckType

_EARLY = 1000
_GIVEN = (AckType.DELIVERED, AckType.READ)


class Receipts:
    def __init__(self, remember: int = 10_000) -> None:
        self._remember = remember
        self._sent: OrderedDict[int, Sent] = OrderedDict()  # not known to be read
        # What lacks a receipt, by receiver; ids rise, so the lowest stands first.
        self._lacking: dict[AckType, dict[int, dict[int, Sent]]] = {receipt: {} for receipt in _GIVEN}
        self._early: OrderedDict[int, AckType] = OrderedDict()

    def know(self, sent: Sent, server_msg_id: int) -> None:
        """The server told the id of a message."""
        if sent.server_msg_id == server_msg_id or sent.read:
            return
        if sent.server_msg_id is not None:
            self._drop(sent.server_msg_id)
        sent.server_msg_id = server_msg_id
        self._sent[server_msg_id] = sent
        for receipt in _GIVEN:
            self._lacking[receipt].setdefault(sent.to, {})[server_msg_id] = sent
        early = self._early.pop(server_msg_id, None)
        if early is not None:
            self.told(early, sent.to, server_msg_id)
        if len(self._sent) > self._remember:
            oldest = self._drop(next(iter(self._sent)))
            oldest.end(ChatOver(FORGOTTEN, "too many messages were sent since to know what became of it"))

    def told(self, receipt: AckType, acker: int | None, server_msg_id: int) -> None:
        """`acker` says of this message, and of those before it, what `receipt` is: delivered or read."""
        sent = self._sent.get(server_msg_id)
        if sent is None:
            self._keep_early(receipt, server_msg_id)
            return
        if acker is not None and acker != sent.to:
            return
        lacking = self._lacking[receipt].get(sent.to, {})
        for id in list(takewhile(lambda id: id <= server_msg_id, lacking)):
            one = self._sent[id]
            if receipt is AckType.READ:
                self._drop(id)  # more than that will not be told
            else:
                del lacking[id]
            one.reach(receipt)

    def all(self) -> list[Sent]:
        return list(self._sent.values())

    def _drop(self, server_msg_id: int) -> Sent:
        sent = self._sent.pop(server_msg_id)
        for lacking in self._lacking.values():
            theirs = lacking.get(sent.to, {})
            theirs.pop(server_msg_id, None)
            if not theirs:
                lacking.pop(sent.to, None)
        return sent

    def _keep_early(self, receipt: AckType, server_msg_id: int) -> None:
        if self._early.get(server_msg_id) is not AckType.READ:
            self._early[server_msg_id] = receipt
        if len(self._early) > _EARLY:
            self._early.popitem(last=False)
