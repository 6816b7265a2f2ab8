"""The outbox with a store whose answers the test gives: what is told to whom when they come early, late or not."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dragoman.protocol.peer import JobEnded
from dragoman.protocol.session import Backpressure
from dragoman.services.loops import Tasks
from dragoman.services.speech.session_output import Outbox
from dragoman.store.errors import RedisAway

END = JobEnded("s", 3, "job", "trace", "ok")


class State(NamedTuple):
    """What a write changes of the state."""

    fields: dict[str, Any]
    gone: list[str]
    base: int
    version: int
    whole: bool = False


class Store:
    """Keeps what was asked for; the test answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, asyncio.Future[bytes]]] = []
        self.after: list[int] = []
        self.states: list[State] = []

    def write(
        self,
        session: str,
        epoch: int,
        seq: int = 0,
        frame: bytes = b"",
        fields: Mapping[str, Any] | None = None,
        version: int = 0,
        after: int = 0,
        second: bytes = b"",
        base: int = 0,
        gone: Sequence[str] = (),
        whole: bool = False,
    ) -> "asyncio.Future[bytes]":
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.asked.append((epoch, seq, answer))
        self.after.append(after)
        self.states.append(State(dict(fields or {}), list(gone), base, version, whole))
        return answer

    def answer(self, *words: bytes) -> None:
        for word, (_, _, future) in zip(words, self.asked, strict=True):
            future.set_result(word)
        self.asked.clear()


class Desk:
    def __init__(self) -> None:
        self.store, self.tasks = Store(), Tasks()
        self.delivered: list[bytes] = []
        self.undelivered: list[JobEnded] = []
        self.outbox = Outbox(
            self.store,  # type: ignore[arg-type]
            "s",
            1,
            0,
            self.tasks,
            deliver=self.delivered.append,
            on_fenced=self.undelivered.extend,
            on_full=lambda: None,
        )

    def post(self, ended: JobEnded | None = None) -> None:
        self.outbox.post([Backpressure(action="BUSY")], {}, ended)


async def test_a_message_is_delivered_when_it_is_written() -> None:
    desk = Desk()
    desk.post()
    assert not desk.delivered
    desk.store.answer(b"OK")
    await asyncio.sleep(0)
    assert len(desk.delivered) == 1


async def test_two_messages_that_belong_together_are_one_write_and_have_two_numbers() -> None:
    desk = Desk()
    desk.outbox.post([Backpressure(action="BUSY"), Backpressure(action="PAUSE")])
    desk.post()
    assert [(seq, after) for (_, seq, _), after in zip(desk.store.asked, desk.store.after, strict=True)] == [
        (1, 0),
        (3, 2),
    ]
    desk.store.answer(b"OK", b"OK")
    await asyncio.sleep(0)
    assert [json.loads(frame)["seq"] for frame in desk.delivered] == [1, 2, 3]


async def test_unconfirmed_write_counts_when_redis_has_it_after_the_session_ended() -> None:
    """Or the job it stands for is dropped, while whoever resumes finds its index open."""
    desk = Desk()
    written, fenced = desk.outbox.note({"next_index": 1}), desk.outbox.note({"next_index": 2})
    desk.outbox.stop()
    assert not written.done()
    desk.store.answer(b"OK", b"FENCED")
    assert await written is True
    assert await fenced is False
    assert not desk.undelivered


async def test_unsent_write_is_dropped_when_the_session_ends() -> None:
    desk = Desk()
    desk.outbox.pause()
    note = desk.outbox.note({"next_index": 1})
    desk.outbox.stop()
    assert await note is False
    assert not desk.store.asked


async def test_fenced_job_ends_go_to_the_current_owner_of_the_session() -> None:
    desk = Desk()
    desk.post()
    desk.post(END)
    desk.store.answer(b"OK", b"FENCED")
    await asyncio.sleep(0)
    assert (len(desk.delivered), desk.undelivered) == (1, [END])


async def test_job_end_for_a_released_session_goes_to_its_current_owner() -> None:
    desk = Desk()
    desk.outbox.stop()
    desk.post(END)
    assert desk.undelivered == [END]


async def test_writes_waiting_for_a_resume_keep_their_epoch_and_order() -> None:
    desk = Desk()
    desk.outbox.pause()
    desk.post()
    desk.post()
    assert not desk.store.asked
    desk.outbox.resume(2, written=0)
    for seq in (1, 2):
        await asyncio.sleep(0)
        ((epoch, asked, _),) = desk.store.asked
        assert (epoch, asked) == (2, seq)
        desk.store.answer(b"OK")
        await asyncio.sleep(0)
    assert len(desk.delivered) == 2
    await desk.tasks.settled()


async def test_messages_written_before_a_resume_are_delivered_once() -> None:
    desk = Desk()
    desk.post()
    desk.outbox.pause()
    desk.store.answer(b"OK")
    await asyncio.sleep(0)
    desk.outbox.resume(2, written=1)
    assert not desk.delivered


async def test_early_writes_follow_refused_ones_and_do_not_fence() -> None:
    desk = Desk()
    desk.post()
    desk.post(END)
    (_, _, first), (_, _, second) = desk.store.asked
    desk.store.asked.clear()
    first.set_exception(RedisAway("refused"))
    second.set_result(b"EARLY")
    for seq in (1, 2):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        ((_, asked, _),) = desk.store.asked
        assert asked == seq
        desk.store.answer(b"OK")
        await asyncio.sleep(0)
    await desk.tasks.settled()
    assert (len(desk.delivered), desk.undelivered) == (2, [])
    # One by one they are written whatever is there: Redis may have lost what it had.
    assert desk.store.after == [0, 1, 0, 0]


async def test_only_what_changed_in_the_state_is_written() -> None:
    desk = Desk()
    desk.outbox.note({"next_index": 1, "open:0": "a"})
    desk.outbox.note({"next_index": 2, "open:0": "a", "open:1": "b"})
    desk.outbox.post([Backpressure(action="BUSY")], {"next_index": 2, "open:1": "b", "settled:0": "sent"})
    desk.outbox.note({"next_index": 2, "open:1": "b", "settled:0": "sent"})
    desk.outbox.note({})
    assert desk.store.states == [
        State({"next_index": 1, "open:0": "a"}, [], 0, 1, whole=True),
        State({"next_index": 2, "open:1": "b"}, [], 1, 2),
        State({"settled:0": "sent"}, ["open:0"], 2, 3),
        State({}, [], 3, 0),
        State({}, [], 3, 0),
    ]


async def test_all_of_the_state_is_written_last_when_redis_has_lost_what_it_had_confirmed() -> None:
    desk = Desk()
    desk.outbox.note({"next_index": 1, "open:0": "a"})
    desk.store.answer(b"OK")
    await asyncio.sleep(0)
    desk.outbox.note({"next_index": 2, "open:0": "a", "open:1": "b"})
    last = desk.outbox.note({"next_index": 3, "open:0": "a", "open:1": "b", "open:2": "c"})
    desk.store.answer(b"EARLY", b"EARLY")
    replies = [b"EARLY", b"OK", b"OK", b"OK"]
    desk.store.states.clear()
    for reply in replies:
        for _ in range(3):
            await asyncio.sleep(0)
        desk.store.answer(reply)
    await desk.tasks.settled()
    assert await last is True
    second, third = {"next_index": 2, "open:1": "b"}, {"next_index": 3, "open:2": "c"}
    assert desk.store.states == [
        State(second, [], 1, 2),
        State(second, [], 0, 2),
        State(third, [], 2, 3),
        State({"next_index": 3, "open:0": "a", "open:1": "b", "open:2": "c"}, [], 0, 4, whole=True),
    ]
    assert not desk.undelivered
