"""A sender's messages when Redis does not answer in time, with stores that fail on demand."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dragoman.archive import BadRow, SaveOutcome, SaveVerdict, Status, Stored
from dragoman.domain.chat.message_ids import IdMaker
from dragoman.domain.chat.switches import Gate, Switches
from dragoman.protocol.chat import AckType, Frame, Reason, ack
from dragoman.services.chat import local_users
from dragoman.services.chat.acceptance import Acceptance
from dragoman.services.chat.credentials import Access
from dragoman.services.chat.delivery import MessagePush, ResendNotBegun
from dragoman.services.chat.feature_switches import PathChooser
from dragoman.services.chat.inbound import now_ms
from dragoman.services.chat.local_users import ChatUser
from dragoman.services.chat.one_phase import OnePhase, Refusals
from dragoman.services.chat.outbound import MessageMaker, Outbound
from dragoman.services.chat.report import Perf
from dragoman.services.loops import ReadFirstTimeout, Tasks
from dragoman.services.metrics import Metrics
from dragoman.store.chat.entries import AcceptReply
from dragoman.store.errors import RedisAway, Refused

TIMEOUT_S = 0.02


class Store:
    """Shards and archive; `stands_still_s`: how long the whole process does while Redis is asked."""

    count = 4

    bytes_per_day = 0

    def __init__(self) -> None:
        self.stands_still_s = 0.0
        self.hangs = False
        self.bad = False
        self.away = False
        self.refuses = ""  # with these words
        self.answer = AcceptReply.OK
        self.saved: list[str] = []
        self.accepted: list[str] = []
        self.on_save: Callable[[], None] | None = None
        self.on_accept: Callable[[], None] = lambda: None
        self.has: dict[str, int] = {}  # messages that are rows already, with their ids
        self.ids: list[int] = []  # of rows
        self.risen: list[int] = []

    async def unsaved(self, user: int) -> int:
        if self.away:
            raise RedisAway("away")
        return 0

    async def accept(self, entry: Any, *_: object) -> tuple[AcceptReply, int]:
        self.accepted.append(entry.client_msg_id)
        self.on_accept()
        time.sleep(self.stands_still_s)  # noqa: ASYNC251 - as a process that is stopped would
        if self.hangs or self.stands_still_s:
            await asyncio.sleep(60)
        if self.away:
            raise RedisAway("away")
        if self.refuses:
            raise Refused(self.refuses)
        return self.answer, 1

    def raise_last_id(self, user: int, id: int) -> asyncio.Future[None]:
        self.risen.append(id)
        return self.remember()

    def remember(self, *_: object) -> asyncio.Future[None]:
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    async def save(self, rows: list[Any], *, on_begin: Callable[[], None]) -> list[Any]:
        self.saved += [row.client_msg_id for row in rows]
        on_begin()
        if self.bad:
            raise BadRow("it cannot be written")
        if self.on_save is None:
            raise AssertionError("it goes on in the archive, which is not looked at here")
        self.on_save()
        (row,) = rows
        id = self.has.get(row.client_msg_id, row.id)
        self.ids.append(id)
        kept = Stored(id, 1, 1, row.from_user, row.to_user, "TEXT", row.body, row.client_msg_id, Status.SAVED, 5, 6)
        return [SaveOutcome(SaveVerdict.EXISTS if row.client_msg_id in self.has else SaveVerdict.SAVED, kept)]


class Pushes:
    """A delivery that Redis would tell where everybody is."""

    def __init__(self) -> None:
        self.unlocated: list[int] = []
        self.pushed: list[int] = []
        self.away = False
        self.handled = True
        self.must: list[int] = []
        self.resent: list[int] = []

    async def look_up(self, users: list[int]) -> dict[int, str]:
        return dict.fromkeys(users, "elsewhere|1")

    def local_owners(self, users: list[int]) -> dict[int, str]:
        self.unlocated += users
        return {}

    async def push(self, pushes: list[MessagePush], owners: dict[int, str], *, in_line: bool) -> set[int]:
        self.pushed += [one.user for one in pushes]
        return set()

    async def resend_first(self, users: set[int]) -> None:
        if self.away:
            raise RedisAway("away")
        if not self.handled:
            raise ResendNotBegun("another instance is slow")
        self.resent += users

    def request_resend(self, user: int) -> None:
        self.must.append(user)

    def is_unlocated(self, user: int) -> bool:
        return user in self.unlocated


class Words:
    def clean(self, body: str) -> str:
        return body


async def nobody(user: ChatUser) -> None:
    raise AssertionError(f"{user.id} is known")


def sending(
    store: Store,
    verify: Callable[[ChatUser], Awaitable[None]] = nobody,
    delivery: Pushes | None = None,
    *,
    two_phase: bool = True,
) -> tuple[Outbound, Gate, list[bytes]]:
    parts = Parts(store, delivery, two_phase)
    user = ChatUser(Access(7, 0, 0), parts.socket, "i|1", cast(Any, store), 0)
    if verify is nobody:
        user.set_verified()
    return parts.outbound(user, verify), parts.gate, parts.heard


class Parts:
    """Of an instance what a sender uses."""

    def __init__(self, store: Store, delivery: Pushes | None, two_phase: bool) -> None:
        self.gate, self.ids, self.heard, self.tasks = Gate(), IdMaker(now_ms), list[bytes](), Tasks()
        self.ids.use(1)
        self.metrics = metrics = Metrics()
        self.socket = cast(Any, SimpleNamespace(send=self.heard.append, closed=False))
        switches: Any = SimpleNamespace(current=Switches(enabled=two_phase))
        any_store, any_delivery = cast(Any, store), cast(Any, delivery)
        refusals, perf = Refusals(metrics), Perf(metrics, any_store, Tasks(), lambda: False)
        self._parts = (
            MessageMaker(self.ids, cast(Any, Words())),
            PathChooser(switches, any_store, self.gate, TIMEOUT_S),
            OnePhase(
                any_store, any_store, any_delivery, switches, self.gate, self.ids, refusals, perf, metrics, self.tasks,
                TIMEOUT_S,
            ),
            Acceptance(
                "i", any_store, any_store, any_delivery, switches, self.gate, self.ids, cast(Any, None), refusals, perf,
                metrics, TIMEOUT_S, cast(Any, None),
            ),
        )  # fmt: skip

    def outbound(self, user: ChatUser, verify: Callable[[ChatUser], Awaitable[None]]) -> Outbound:
        return Outbound(user, *self._parts, self.tasks, verify)


def message(name: str, to: int = 8) -> Frame:
    return Frame("SINGLE_CHAT", clientMsgId=name, to=to, body="hi")


async def test_process_that_was_paused_does_not_take_redis_for_unavailable_and_saves_nothing_past_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a pause its users may have gone on elsewhere: what it saved by itself would be overtaken."""
    monkeypatch.setattr(ReadFirstTimeout, "PAUSED_S", 0.05)
    store = Store()
    sender, gate, heard = sending(store)
    store.stands_still_s = 0.2
    await sender.handle(message("m1"), time.monotonic())
    assert (store.saved, gate.open) == ([], True)
    assert Reason.SERVER_BUSY.encode() in heard[-1]
    store.stands_still_s = 0.0
    await sender.handle(message("m2"), time.monotonic())
    assert b'"accepted"' in heard[-1]


async def test_row_that_the_database_refuses_counts_as_a_failed_save() -> None:
    store = Store()
    store.bad = True
    sender, _, heard = sending(store, delivery=Pushes(), two_phase=False)
    await sender.handle(message("m1"), time.monotonic())
    assert Reason.SAVE_FAILED.encode() in heard[-1]
    assert sender._one_phase._metrics.chat_save_fail.value == 1


async def test_messages_saved_in_one_phase_do_not_count_for_the_save_lag_of_two_phases() -> None:
    store = Store()
    store.on_save = lambda: None
    sender, _, _ = sending(store, delivery=Pushes(), two_phase=False)
    await sender.handle(message("m1"), time.monotonic())
    metrics = sender._one_phase._metrics
    assert (sum(metrics.chat_save_lag.buckets), sum(metrics.chat_db_queue.buckets)) == (0, 1)


async def test_saved_that_arrives_before_the_answer_of_redis_is_sent_after_accepted_and_not_with_an_earlier_ts() -> (
    None
):
    store = Store()
    sender, _, heard = sending(store)
    saved = ack(AckType.SAVED, 7, "m1", 1, ts=1)
    store.on_accept = lambda: sender._user.notified(saved, 1, "m1")
    sender.take(message("m1"))
    await sender._tasks.settled()
    first, second = map(json.loads, heard)
    assert (first["ackType"], second["ackType"]) == ("accepted", "saved")
    assert first["ts"] <= second["ts"]


async def test_frames_of_a_message_have_rising_ts_although_the_clock_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    store, clock = Store(), iter([50, 40, 30])
    store.answer = AcceptReply.SAVED
    sender, _, heard = sending(store)
    monkeypatch.setattr(local_users, "now_ms", lambda: next(clock))
    await sender.handle(message("m1"), time.monotonic())
    sender._user.notified(ack(AckType.DELIVERED, 8, "m1", 1, ts=20), 0)
    assert [json.loads(frame)["ts"] for frame in heard] == [50, 50, 50]


async def test_messages_are_saved_without_a_redis_that_does_not_answer_in_time() -> None:
    store = Store()
    sender, gate, _ = sending(store)
    store.hangs = True
    with pytest.raises(AssertionError, match="archive"):
        await sender.handle(message("m1"), time.monotonic())
    assert (store.saved, gate.open) == (["m1"], False)


async def test_user_that_connected_without_redis_is_verified_before_its_first_message_is_accepted() -> None:
    store = Store()

    async def verify(user: ChatUser) -> None:
        assert store.accepted == []
        user.set_verified()

    sender, _, _ = sending(store, verify)
    await sender.handle(message("m1"), time.monotonic())
    assert store.accepted == ["m1"]


async def test_nothing_is_accepted_from_a_user_whose_session_is_over() -> None:
    store = Store()

    async def verify(user: ChatUser) -> None:
        user.socket.closed = True  # type: ignore[misc]

    sender, gate, heard = sending(store, verify)
    await sender.handle(message("m1"), time.monotonic())
    assert (store.accepted, store.saved, gate.open) == ([], [], True)
    assert Reason.SERVER_BUSY.encode() in heard[-1]


async def test_receiver_of_a_message_saved_past_redis_gets_a_resend_first_although_redis_is_back() -> None:
    """One that went through it just before is saved, and may not have been pushed yet."""
    store, delivery = Store(), Pushes()
    sender, gate, heard = sending(store, delivery=delivery)
    gate.failed(time.monotonic())
    store.on_save = gate.worked  # somebody else has found it well again
    await sender.handle(message("m1"), time.monotonic())
    assert (delivery.pushed, delivery.unlocated) == ([8], [8])
    assert b'"saved"' in heard[-1]


async def test_instance_that_is_slow_to_begin_a_resend_does_not_make_others_do_without_redis() -> None:
    store, delivery = Store(), Pushes()
    sender, gate, heard = sending(store, delivery=delivery)
    sender._user.sender.resend_to.add(8)
    sender._user.unsaved.counted(0, 0, 0.0)
    delivery.handled = False
    await sender.handle(message("m1"), time.monotonic())
    assert (store.accepted, store.saved, gate.open) == ([], [], True)
    assert Reason.SERVER_BUSY.encode() in heard[-1]
    delivery.handled = True
    await sender.handle(message("m1"), time.monotonic())
    assert store.accepted == ["m1"]


async def test_without_redis_nothing_is_saved_past_a_message_that_another_instance_accepted_meanwhile() -> None:
    """As one that stood still does when it goes on: we had counted before that, and hear of it as of a repetition."""
    store = Store()
    sender, _, heard = sending(store)
    sender._user.unsaved.counted(0, 0, 0.0)
    store.answer = AcceptReply.DUPLICATE
    await sender.handle(message("m1"), time.monotonic())
    assert b'"accepted"' in heard[-1]
    store.away = True
    await sender.handle(message("m2"), time.monotonic())
    assert store.saved == []
    assert Reason.SERVER_BUSY.encode() in heard[-1]


async def test_ids_rise_for_a_sender_whose_message_was_saved_by_one_whose_clock_was_ahead_and_that_died() -> None:
    """It died before it could tell Redis the id; the sender sends the message again, and hears of it here."""
    store = Store()
    sender, _, heard = sending(store, delivery=Pushes(), two_phase=False)
    store.on_save = lambda: None
    store.has["m1"] = ahead = sender._one_phase._ids.draw() + (60_000 << 22)
    await sender.handle(message("m1"), time.monotonic())
    assert str(ahead).encode() in heard[-1]
    await sender.handle(message("m2"), time.monotonic())
    assert store.ids[1] > store.ids[0] == ahead
    assert store.risen == store.ids, "for those who go on elsewhere"


OOM = "OOM command not allowed when used memory > 'maxmemory'."


@pytest.mark.parametrize(
    "words",
    [
        f"{OOM} script: on @user_script:31.",
        f"ERR Error running script (call to f_8036de): @user_script:31: @user_script: 31: -{OOM}",
    ],
    ids=["Redis 7", "Redis 6.2"],
)
async def test_redis_that_refuses_to_work_counts_as_unavailable(words: str) -> None:
    store = Store()
    sender, gate, heard = sending(store, delivery=Pushes())
    store.refuses, store.on_save = words, lambda: None
    await sender.handle(message("m1"), time.monotonic())
    assert (store.saved, gate.open) == (["m1"], False)
    assert b'"saved"' in heard[-1]


async def test_script_that_fails_by_itself_is_a_bug_and_not_an_outage() -> None:
    store = Store()
    sender, gate, _ = sending(store)
    store.refuses = "ERR Error running script (call to f_8036de): @user_script:31: attempt to index a nil value"
    with pytest.raises(Refused):
        await sender.handle(message("m1"), time.monotonic())
    assert (store.saved, gate.open) == ([], True)


async def test_receivers_get_a_resend_before_the_first_message_of_a_sender_that_moved() -> None:
    store, delivery = Store(), Pushes()
    sender, _, _ = sending(store, delivery=delivery)
    await sender.handle(message("m1"), time.monotonic())
    assert delivery.resent == []
    sender._user.sender.moved()
    await sender.handle(message("m2"), time.monotonic())
    await sender.handle(message("m3", to=9), time.monotonic())
    await sender.handle(message("m4"), time.monotonic())
    assert (delivery.must, delivery.resent) == ([8, 9], [8, 9])


async def test_sender_that_moved_does_not_wait_for_an_instance_that_does_not_answer() -> None:
    """Its receiver may have been on the one that died."""
    store, delivery = Store(), Pushes()
    sender, gate, heard = sending(store, delivery=delivery)
    sender._user.sender.moved()
    delivery.handled = False
    await sender.handle(message("m1"), time.monotonic())
    assert (store.accepted, gate.open) == (["m1"], True)
    assert b'"accepted"' in heard[-1]


async def test_nothing_is_accepted_from_a_sender_that_moved_while_its_receiver_cannot_be_located() -> None:
    store, delivery = Store(), Pushes()
    sender, _, heard = sending(store, delivery=delivery)
    sender._user.sender.moved()
    delivery.away, store.on_save = True, lambda: None
    await sender.handle(message("m1"), time.monotonic())
    assert (store.accepted, store.saved, delivery.unlocated) == ([], ["m1"], [8])
    assert b'"saved"' in heard[-1]


async def test_receiver_gets_a_resend_before_the_push_of_a_sender_that_moved_in_one_phase() -> None:
    store, delivery = Store(), Pushes()
    sender, _, _ = sending(store, delivery=delivery, two_phase=False)
    store.on_save = lambda: None
    sender._user.sender.moved()
    delivery.handled = False
    await sender.handle(message("m1"), time.monotonic())
    assert (delivery.must, delivery.pushed) == ([8], [8])
