"""Chat users in a process of their own: an open loop of messages, each timed from the moment it was due.

Message `n` is due at `start + due[n]`, whether the ones before it were answered or not. All latencies count from there,
so a server that stalls is charged for every message that waits. Senders take turns in
random order, receivers are drawn; receivers acknowledge each message at once. Clocks are those of one machine.

Raw frames and one small decode: the clients share their cores with what is measured.
"""

import asyncio
import gc
import time
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from contextlib import suppress
from math import inf
from random import Random
from time import monotonic
from typing import Any

import jwt
import msgspec
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from dragoman.tools.bench.measure import percentile
from dragoman.tools.processes import open_all, serve

OPENING = 20
OPEN_TIMEOUT_S = 60.0
FIRST_UID = 1_000_001
TOKEN_S = 86_400
PING_S = 20.0
TESTER_PING_S = 1.0  # of the original load tester
POLL_S = 0.02
TICK_S = 0.001
BEHIND_S = 2.0  # that we may be when the time is over, and still send what was due
SHARES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
MAX_ERRORS = 5
NEVER = 0.0

_TEXT = WSMsgType.TEXT
_CHAT = b'{"type":"SINGLE_CHAT","clientMsgId":"%b-%d","to":"%d","msgType":"TEXT","body":"%b"}'
_DELIVERED = b'{"type":"ACK","ackType":"delivered","serverMsgId":"%b","to":"%b"}'
_PING = b'{"type":"PING"}'
_BODY = b"Shall we meet at the station at seven? The train leaves at ten past."


class ServerMessage(msgspec.Struct, gc=False, rename={"from_": "from"}):
    type: str
    ackType: str = ""
    clientMsgId: str = ""
    serverMsgId: str = ""
    from_: str = ""
    reason: str = ""


_decode = msgspec.json.Decoder(ServerMessage).decode


class ChatLoad:
    """All users of this process."""

    def __init__(self) -> None:
        self.users: list[ChatUser] = []
        self.name = b""
        self._pacing: asyncio.Task[None] | None = None
        self._pinging: asyncio.Task[None] | None = None
        self._reset(0.0, array("d"))

    def _reset(self, start: float, due: "array[float]") -> None:
        self.start, self.due, self.sent = start, due, 0
        self.accepted, self.saved, self.arrived, self.refused = (array("d", bytes(8 * len(due))) for _ in range(4))
        self.delivered = self.duplicates = self.by_from = self.by_id = self.inversions = 0
        self.errors: Counter[str] = Counter()
        self.late: list[int] = []  # that came after a later one of their sender
        self.failures: list[str] = []

    # -- commands of the bench -------------------------------------------------------------------

    async def open(self, urls: list[str], count: int, secret: str, issuer: str, pings: bool = False) -> dict[str, Any]:
        """Users dealt out to `urls`, all of them accepted. `pings`: each sends a PING every second."""

        async def one(number: int) -> None:
            user = ChatUser(self, FIRST_UID + number, chat_token(FIRST_UID + number, secret, issuer))
            await ws_connect(lambda: user, f"{urls[number % len(urls)]}/ws")
            await user.opened
            self.users.append(user)

        await open_all(range(count), OPENING, OPEN_TIMEOUT_S, one)
        self._pinging = asyncio.create_task(self._ping(TESTER_PING_S if pings else PING_S))
        return {"users": len(self.users)}

    async def pace(self, phases: list[tuple[float, float]], name: str, in_time: bool = False) -> None:
        """For each phase so many messages a second for so many seconds; nothing of an earlier pace counts.

        `in_time`: what we did not manage to send while it lasted is left out, and counted as unsent.
        """
        for user in self.users:
            user.restart_numbers()
        gc.collect()
        gc.freeze()
        gc.disable()
        self.name = name.encode()
        due, began = array("d"), 0.0
        for per_s, seconds in phases:
            due.extend(began + number / per_s for number in range(int(per_s * seconds)))
            began += seconds
        self._reset(monotonic() + 0.05, due)
        until = self.start + began + BEHIND_S if in_time else inf
        self._pacing = asyncio.create_task(self._pace(until))

    async def result(self, warmup_s: float, wait_s: float, expects_accepted: bool) -> dict[str, Any]:
        """Wait until everything is sent and answered, at most `wait_s`; figures of what was due after the warm-up."""
        assert self._pacing is not None
        await self._pacing
        for _ in range(int(wait_s / POLL_S)):
            if self._settled():
                break
            await asyncio.sleep(POLL_S)
        if self.errors or self.failures:
            await asyncio.sleep(0.5)  # what else there is to hear
        return self._figures(bisect_left(self.due, warmup_s), expects_accepted)

    async def seconds(self) -> dict[str, Any]:
        """Of the messages that were due in each second: how many, and what their senders received."""
        found = []
        for second in range(int(self.due[self.sent - 1]) + 1 if self.sent else 0):
            numbers = range(bisect_left(self.due, second), bisect_left(self.due, second + 1, hi=self.sent))
            one: dict[str, Any] = {"sent": len(numbers)}
            for name, at in (("accepted", self.accepted), ("refused", self.refused)):
                taken = [at[number] - self.start - self.due[number] for number in numbers if at[number]]
                one |= {name: len(taken), **_latency(name, taken)}
            found.append(one)
        return {"seconds": found}

    async def progress(self) -> dict[str, Any]:
        return {"sent": self.sent, "saved": _count(self.saved), "errors": dict(self.errors)}

    def _settled(self) -> bool:
        refused = sum(self.errors.values())
        return _count(self.saved) + refused >= self.sent and _count(self.arrived) + refused >= self.sent

    async def _pace(self, until: float) -> None:
        """A message that is due is sent, however late this wakes up."""
        rng, users = Random(1), list(self.users)
        turn: list[ChatUser] = []
        while self.sent < len(self.due) and monotonic() < until:
            due = bisect_right(self.due, monotonic() - self.start)
            while self.sent < due:
                if not turn:
                    turn = rng.sample(users, len(users))
                sender = turn.pop()
                receiver = rng.choice(users)
                while receiver is sender:
                    receiver = rng.choice(users)
                sender.send(self.sent, receiver.uid)
                self.sent += 1
            # Less than the loop's millisecond would be none at all, and the clients would spin.
            next_due = self.due[min(self.sent, len(self.due) - 1)]
            await asyncio.sleep(max(self.start + next_due - monotonic(), TICK_S))

    async def _ping(self, every_s: float) -> None:
        """Each user in its turn: together they would all be answered at the same moment."""
        while True:
            for user in self.users:
                user.ping()
                await asyncio.sleep(every_s / len(self.users))

    def _figures(self, first: int, expects_accepted: bool) -> dict[str, Any]:
        numbers = range(first, self.sent)
        due = [self.start + self.due[number] for number in numbers]
        figures: dict[str, Any] = {"sent": len(due), "unsent": len(self.due) - self.sent}
        timed = {"saved": self.saved, "e2e": self.arrived} | ({"accepted": self.accepted} if expects_accepted else {})
        for name, at in timed.items():
            figures |= _latency(
                name, [at[number] - when for number, when in zip(numbers, due, strict=True) if at[number]]
            )
        if expects_accepted:
            both = (number for number in numbers if self.saved[number] and self.accepted[number])
            figures |= _latency("save_lag", [max(self.saved[number] - self.accepted[number], 0.0) for number in both])
            figures["accepted_count"] = sum(1 for number in numbers if self.accepted[number])
        figures["saved_count"] = sum(1 for number in numbers if self.saved[number])
        figures["arrived_count"] = sum(1 for number in numbers if self.arrived[number])
        figures["took_s"] = max(max(self.saved), due[-1]) - due[0]
        figures |= {"duplicates": self.duplicates, "reorderByFrom": self.by_from, "reorderByServerMsgId": self.by_id}
        figures |= {"inversions": self.inversions, "delivered": self.delivered}
        figures["late_and_refused"] = sum(1 for number in set(self.late) if self.refused[number])
        figures["server_busy"] = sum(1 for number in numbers if self.refused[number])
        return figures | {"errors": dict(self.errors), "failures": self.failures[:MAX_ERRORS]}


class ChatUser(WSListener):
    def __init__(self, all: ChatLoad, uid: int, token: str) -> None:
        self.uid = uid
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._all = all
        self._token = token
        self._transport: WSTransport
        self._last: dict[str, tuple[int, int]] = {}  # by sender: number and id of its newest message here
        self._last_id = 0
        self._closed = ""

    def send(self, number: int, to: int) -> None:
        self._transport.send(_TEXT, _CHAT % (self._all.name, number, to, _BODY))

    def ping(self) -> None:
        self._transport.send(_TEXT, _PING)

    def restart_numbers(self) -> None:
        """Numbers begin anew."""
        self._last.clear()

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        transport.send(_TEXT, b'{"type":"AUTH","token":"%b"}' % self._token.encode())

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type is not _TEXT:
            if frame.msg_type is WSMsgType.CLOSE:
                payload = frame.get_payload_as_bytes()
                self._closed = f": {int.from_bytes(payload[:2], 'big')} {payload[2:].decode(errors='replace')}"
            return
        now = monotonic()
        message = _decode(frame.get_payload_as_bytes())
        match message.type:
            case "ACK":
                self._ack(message, now)
            case "SINGLE_CHAT":
                self._arrived(message, now)
            case "AUTH_OK":
                self.opened.set_result(None)
            case "ERROR" | "AUTH_FAIL":
                self._error(message)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._all.failures.append(f"a connection was closed{self._closed}")
        if not self.opened.done():
            self.opened.set_exception(ConnectionError("a user was not accepted"))

    def _ack(self, message: ServerMessage, now: float) -> None:
        all = self._all
        if message.ackType in ("delivered", "read"):
            all.delivered += 1
        elif (number := self._number(message)) is not None:
            times = all.saved if message.ackType == "saved" else all.accepted
            if times[number] == NEVER:
                times[number] = now

    def _arrived(self, message: ServerMessage, now: float) -> None:
        all = self._all
        self._transport.send(_TEXT, _DELIVERED % (message.serverMsgId.encode(), message.from_.encode()))
        number = self._number(message)
        if number is None:
            return
        if all.arrived[number] != NEVER:
            all.duplicates += 1
            return
        all.arrived[number] = now
        id = int(message.serverMsgId)
        last_number, last_id = self._last.get(message.from_, (-1, 0))
        if number < last_number:
            all.by_from += 1
            all.late.append(number)
        all.by_id += id < last_id
        all.inversions += id < self._last_id
        self._last[message.from_] = (max(number, last_number), max(id, last_id))
        self._last_id = max(id, self._last_id)

    def _number(self, message: ServerMessage) -> int | None:
        """Of a message of this pace."""
        name, _, number = message.clientMsgId.rpartition("-")
        return int(number) if name.encode() == self._all.name else None

    def _error(self, message: ServerMessage) -> None:
        self._all.errors[message.reason] += 1
        if message.reason == "server_busy" and (number := self._number(message)) is not None:
            self._all.refused[number] = monotonic()
        if not self.opened.done():
            self.opened.set_exception(ConnectionError(f"a user was not accepted: {message.reason}"))


def _latency(name: str, taken_s: list[float]) -> dict[str, float]:
    taken_s.sort()
    if not taken_s:
        return {f"{name}_{share}_ms": float("nan") for share in SHARES}
    return {f"{name}_{share}_ms": percentile(taken_s, part) * 1e3 for share, part in SHARES.items()}


def _count(times: "array[float]") -> int:
    return len(times) - times.count(NEVER)


def chat_token(uid: int, secret: str, issuer: str) -> str:
    now = int(time.time())
    claims = {"iss": issuer, "iat": now, "exp": now + TOKEN_S, "uid": uid, "typ": "access"}
    return jwt.encode(claims, secret, algorithm="HS256")


def main() -> None:
    all = ChatLoad()
    with suppress(KeyboardInterrupt):
        serve({name: getattr(all, name) for name in ("open", "pace", "progress", "result", "seconds")})


if __name__ == "__main__":
    main()
