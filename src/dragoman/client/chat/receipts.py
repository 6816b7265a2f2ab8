"""Receipts of the receivers, brought to the messages they are of. Pure.

- The newest `remember` messages are known by their serverMsgId; of older ones no more receipts are told.
- A receipt may overtake the *accepted* of its message, when two servers tell them: it is kept until that comes.
- *read* counts for everything before it in that conversation that was delivered, as it does at the server.
"""

from collections import OrderedDict

from dragoman.client.chat.errors import FORGOTTEN, ChatOver
from dragoman.client.chat.sent import Sent
from dragoman.protocol.chat import AckType

_EARLY = 1000


class Receipts:
    def __init__(self, remember: int = 10_000) -> None:
        self._remember = remember
        self._sent: OrderedDict[int, Sent] = OrderedDict()
        self._unread: dict[int, dict[int, Sent]] = {}  # delivered, by receiver and serverMsgId
        self._early: OrderedDict[int, AckType] = OrderedDict()

    def know(self, sent: Sent, server_msg_id: int) -> None:
        """The server told the id of a message."""
        if sent.server_msg_id == server_msg_id:
            return
        if sent.server_msg_id is not None:
            self._sent.pop(sent.server_msg_id, None)
        sent.server_msg_id = server_msg_id
        self._sent[server_msg_id] = sent
        if len(self._sent) > self._remember:
            _, oldest = self._sent.popitem(last=False)
            self._forget(oldest)
        early = self._early.pop(server_msg_id, None)
        if early is not None:
            self.told(early, sent.to, server_msg_id)

    def told(self, receipt: AckType, acker: int | None, server_msg_id: int) -> None:
        """`acker` says of this message what `receipt` is: delivered or read."""
        sent = self._sent.get(server_msg_id)
        if sent is None:
            self._keep_early(receipt, server_msg_id)
        elif acker is None or acker == sent.to:
            sent.reach(receipt)
            unread = self._unread.setdefault(sent.to, {})
            if receipt is AckType.DELIVERED and not sent.read:
                unread[server_msg_id] = sent
            elif receipt is AckType.READ:
                for earlier in [id for id in unread if id <= server_msg_id]:
                    unread.pop(earlier).reach(AckType.READ)
                    self._sent.pop(earlier, None)
                self._sent.pop(server_msg_id, None)  # more than that will not be told

    def all(self) -> list[Sent]:
        return list(self._sent.values())

    def _keep_early(self, receipt: AckType, server_msg_id: int) -> None:
        if self._early.get(server_msg_id) is not AckType.READ:
            self._early[server_msg_id] = receipt
        if len(self._early) > _EARLY:
            self._early.popitem(last=False)

    def _forget(self, sent: Sent) -> None:
        if sent.server_msg_id is not None:
            self._unread.get(sent.to, {}).pop(sent.server_msg_id, None)
        if not sent.read:
            sent.end(ChatOver(FORGOTTEN, "too many messages were sent since to know what became of it"))
