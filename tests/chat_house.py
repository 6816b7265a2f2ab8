"""One instance without its door, as far as chat goes: whoever has a socket comes in, sends, and hears.

Its loops do not run: a test calls what they would.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from dragoman.archive.sqlite import SqliteArchive
from dragoman.domain.chat.gate import Gate
from dragoman.domain.chat.switches import Switches
from dragoman.domain.chat.words import WordFilter
from dragoman.protocol.chat import decode_frame
from dragoman.services.chat.admission import Admission
from dragoman.services.chat.clock import now_ms
from dragoman.services.chat.courier import Courier
from dragoman.services.chat.desk import Desk, IdMaker, Repeats
from dragoman.services.chat.inbound import ChatSocket
from dragoman.services.chat.local_users import LocalUsers
from dragoman.services.chat.mailroom import Mailroom
from dragoman.services.chat.perf import Perf
from dragoman.services.chat.receipts import Receipts
from dragoman.services.chat.replicas import Replicas
from dragoman.services.chat.resender import Resender
from dragoman.services.chat.switchboard import Switchboard
from dragoman.services.chat.tokens import Tokens
from dragoman.services.chat.user import ChatUser
from dragoman.services.loops import Tasks
from dragoman.services.metrics import Metrics
from dragoman.store.chat.shards import Names, Shards
from dragoman.store.chat.users import Users
from dragoman.store.inbox import Inboxes, InboxSettings
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from waiting import wait_until

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


class House:
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
        accept_timeout_s: float = 5.0,
        users: Users | None = None,
    ) -> None:
        metrics, self.tasks = Metrics(), Tasks()
        self.archive, self.users = SqliteArchive(database), users or Users(redis, keys, OWNER_TTL_MS)
        stream = f"{keys.im}:stream:single_chat"
        names = Names(f"{stream}:accepted", f"{stream}:to_save", "deliver", "save")
        self.shards = Shards(redis, keys, names, 1, 600_000)
        self.here, self.tokens = (
            LocalUsers(metrics, 60.0),
            Tokens(["a secret of thirty-two characters"], "us", 600, 600),
        )
        self.courier = Courier(name, self.here, self.users, Inboxes(redis, keys, InboxSettings()), metrics)
        self.receipts = Receipts(self.archive, self.users, self.courier, metrics, self.tasks)
        self.resender = Resender(self.here, self.archive, self.receipts, self.tasks, 10.0)
        self.ids = IdMaker(clock)
        self.ids.use(worker)
        switchboard = cast(Switchboard, Fixed(Switches(enabled=enabled, rollout_percent=rollout_percent)))
        desk = Desk(
            name, self.shards, self.archive, self.courier, switchboard, WordFilter(()), metrics, self.tasks, Gate(),
            self.ids, accept_timeout_s, cast(Replicas, None), Repeats(metrics),
            Perf(metrics, self.shards, self.tasks),
        )  # fmt: skip
        self.admission = Admission(
            name, self.tokens, self.users, self.here, self.shards, Mailroom(self.archive, self.tasks), self.courier,
            self.receipts, desk, self.tasks,
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
        socket = Socket(connection)
        user = await self.come_in(sender, socket)
        said = {"type": "SINGLE_CHAT", "clientMsgId": body, "to": receiver, "body": body}
        self.admission.outbound(user).take(decode_frame(json.dumps(said).encode()))
        await wait_until(lambda: any(frame.get("ackType") == "saved" for frame in socket.heard))
        (told,) = [frame for frame in socket.of_type("ACK") if frame["ackType"] == "saved"]
        return int(told["serverMsgId"])

    async def close(self) -> None:
        await self.tasks.settled()
        await self.archive.close()
