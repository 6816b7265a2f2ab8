"""One instance without its door, as far as chat goes: whoever has a socket comes in, sends, and hears.

Its loops do not run: a test calls what they would.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from dragoman.archive.sqlite import SqliteArchive
from dragoman.domain.chat.message_ids import IdMaker
from dragoman.domain.chat.rules import WordFilter
from dragoman.domain.chat.switches import Gate, Switches
from dragoman.protocol.chat import decode_frame
from dragoman.services.chat.acceptance import Acceptance, EarlyPush, PushedMessages
from dragoman.services.chat.admission import Admission
from dragoman.services.chat.credentials import Tokens
from dragoman.services.chat.delivery import Delivery
from dragoman.services.chat.feature_switches import FeatureSwitches, PathChooser
from dragoman.services.chat.inbound import ChatSocket, now_ms
from dragoman.services.chat.local_users import ChatUser, LocalUsers
from dragoman.services.chat.one_phase import OnePhase, Refusals
from dragoman.services.chat.outbound import MessageMaker, Outbound, Verify
from dragoman.services.chat.receipts import Receipts, Resender, UndeliveredLookup
from dragoman.services.chat.report import Perf
from dragoman.services.loops import Tasks
from dragoman.services.metrics import Metrics
from dragoman.services.routing.router import Announcer
from dragoman.store.chat.cluster import Replicas
from dragoman.store.chat.shards import Shards, StreamNames
from dragoman.store.chat.users import Users
from dragoman.store.inbox import Inboxes, InboxSettings
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from support.waiting import wait_until

OWNER_TTL_MS = 45_000


class Socket:
    """What a client hears."""

    closed = False
    buffered = 0
    frames = pings = 0
    dead = False  # and nobody knows

    def __init__(self, id: int) -> None:
        self.id = id
        self.heard: list[dict[str, Any]] = []

    def send(self, frame: bytes) -> None:
        self.heard.append(json.loads(frame))

    def close(self, code: int, reason: str = "") -> None:
        self.closed = True

    def ping(self) -> None:
        self.pings += 1
        self.frames += not self.dead

    def of_type(self, kind: str) -> list[dict[str, Any]]:
        return [frame for frame in self.heard if frame["type"] == kind]

    @property
    def messages(self) -> list[str]:
        """The bodies of those it was sent, in order."""
        return [frame["body"] for frame in self.of_type("SINGLE_CHAT")]


class Fixed:
    """Switches that nobody changes."""

    def __init__(self, switches: Switches) -> None:
        self.current = switches


class InProcessChat:
    def __init__(
        self,
        name: str,
        worker: int,
        redis: Redis,
        keys: Keys,
        database: Path,
        *,
        clock: Callable[[], int] = now_ms,
        enabled: bool = False,
        rollout_percent: int = 0,
        deliver_before_saved: bool = False,
        accept_timeout_s: float = 5.0,
        users: Users | None = None,
    ) -> None:
        metrics, self.tasks = Metrics(), Tasks()
        self.archive, self.users = SqliteArchive(database), users or Users(redis, keys, OWNER_TTL_MS)
        stream = f"{keys.im}:stream:single_chat"
        names = StreamNames(f"{stream}:accepted", f"{stream}:to_save", "deliver", "save")
        self.shards = Shards(redis, keys, names, 1, 600_000)
        self.local = LocalUsers(metrics, self.tasks, 60.0)
        self.tokens = Tokens(["a secret of thirty-two characters"], "us", 600, 600)
        self.delivery = Delivery(
            name, self.local, self.users, Inboxes(redis, keys, InboxSettings()), metrics, self.tasks
        )
        self.announcer = Announcer(redis, keys, self.tasks, name)
        self.early = EarlyPush(self.delivery, PushedMessages(name, self.announcer), self.announcer, metrics)
        self.receipts = Receipts(self.archive, self.users, self.delivery, metrics, self.tasks)
        self.resender = Resender(self.local, self.archive, self.receipts, self.tasks, 10.0)
        self.ids = IdMaker(clock)
        self.ids.use(worker)
        switches = cast(
            FeatureSwitches, Fixed(Switches(enabled, deliver_before_saved, rollout_percent=rollout_percent))
        )
        gate, refusals, perf = Gate(), Refusals(metrics), Perf(metrics, self.shards, self.tasks)
        messages = MessageMaker(self.ids, WordFilter(()))
        paths = PathChooser(switches, self.shards, gate, accept_timeout_s)
        one_phase = OnePhase(
            self.archive, self.shards, self.delivery, switches, gate, self.ids, refusals, perf, metrics, self.tasks,
            accept_timeout_s,
        )  # fmt: skip
        two_phase = Acceptance(
            name, self.shards, self.archive, self.delivery, switches, gate, self.ids, cast(Replicas, None), refusals,
            perf, metrics, accept_timeout_s, self.early,
        )  # fmt: skip

        def outbound(user: ChatUser, verify: Verify) -> Outbound:
            return Outbound(user, messages, paths, one_phase, two_phase, self.tasks, verify)

        self.admission = Admission(
            name, self.tokens, self.users, self.local, self.shards, UndeliveredLookup(self.archive, self.tasks),
            self.delivery, self.receipts, self.ids, self.tasks, outbound, timeout_s=accept_timeout_s,
        )  # fmt: skip

    async def come_in(self, user: int, socket: Socket) -> ChatUser:
        """Let in, and sent what waited."""
        token = self.tokens.access(user, 0, now_ms() / 1000)
        found = await self.admission.admit(cast(ChatSocket, socket), token)
        assert isinstance(found, ChatUser)
        await self.tasks.settled()
        return found

    async def send(self, sender: int, receiver: int, connection: int, body: str) -> int:
        """Come in, send, and hear saved; answers its serverMsgId."""
        return await self.send_until("saved", sender, receiver, connection, body)

    async def send_until(self, ack: str, sender: int, receiver: int, connection: int, body: str) -> int:
        """The same until another ACK."""
        socket = Socket(connection)
        user = await self.come_in(sender, socket)
        said = {"type": "SINGLE_CHAT", "clientMsgId": body, "to": receiver, "body": body}
        self.admission.outbound(user).take(decode_frame(json.dumps(said).encode()))
        await wait_until(lambda: any(frame.get("ackType") == ack for frame in socket.heard))
        (told,) = [frame for frame in socket.of_type("ACK") if frame["ackType"] == ack]
        return int(told["serverMsgId"])

    async def close(self) -> None:
        await self.tasks.settled()
        await self.archive.close()
