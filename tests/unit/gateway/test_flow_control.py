"""Reading and writing no faster than the peer: reasons to stop, bursts and stalls."""

import asyncio
from collections import deque
from itertools import permutations
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.gateway.flow_control import Backlog, InboundQueue, Pause, ReadGate
from dragoman.gateway.http_connections import WriteStall
from support.tables import for_each
from support.waiting import wait_until

REASONS = (Pause.ENDPOINT, Pause.QUEUE, Pause.IDLE, Pause.HOLD)
PER_TURN = 16
MAX_SMALL = 512  # of the smallest messages may wait before reading stops


class Transport(Mock):
    """Whether it is read."""

    reading, closing = True, False

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closing


@for_each(permutations(REASONS))
def test_connection_is_read_again_only_when_the_last_reason_is_gone(*order: int) -> None:
    transport = Transport()
    gate = ReadGate(transport)
    for reason in REASONS:
        gate.pause(reason)
        assert gate.is_paused(reason)
        assert not transport.reading
    for left, reason in enumerate(order, 1):
        gate.resume(reason)
        assert not gate.is_paused(reason)
        assert transport.reading is (left == len(REASONS))


def test_reason_counts_once_however_often_it_is_given() -> None:
    transport = Transport()
    gate = ReadGate(transport)
    gate.pause(Pause.ENDPOINT)
    gate.pause(Pause.ENDPOINT)
    gate.resume(Pause.QUEUE)
    assert not transport.reading
    gate.resume(Pause.ENDPOINT)
    assert transport.reading


@pytest.mark.parametrize("open_it", [False, True])
def test_transport_that_is_closing_is_not_read_again(open_it: bool) -> None:
    transport = Transport()
    gate = ReadGate(transport)
    gate.pause(Pause.IDLE)
    transport.closing = True
    gate.open() if open_it else gate.resume(Pause.IDLE)
    assert not transport.reading


def test_open_gate_has_no_reason_left() -> None:
    transport = Transport()
    gate = ReadGate(transport)
    for reason in REASONS:
        gate.pause(reason)
    gate.open()
    assert transport.reading
    assert not any(gate.is_paused(reason) for reason in REASONS)


class Connection:
    """An queue, and the messages that were handled, in order."""

    def __init__(self) -> None:
        self.transport, self.handled = Transport(), list[int]()
        self.queue = InboundQueue(ReadGate(self.transport))

    def read(self, *numbers: int, size: int = 0) -> None:
        """These messages come in one read."""
        for number in numbers:
            if self.queue.admits(is_last_read=number == numbers[-1]):
                self.handled.append(number)
            else:
                self.queue.add(lambda number=number: self.handled.append(number), size)  # type: ignore[misc]


async def a_turn() -> None:
    await asyncio.sleep(0)


async def test_few_messages_are_handled_at_once_and_the_rest_a_few_in_each_turn() -> None:
    conn = Connection()
    conn.read(*range(3 * PER_TURN + 1))
    assert conn.handled == list(range(PER_TURN))
    for turn in (2, 3):
        await a_turn()
        assert conn.handled == list(range(turn * PER_TURN))
    await a_turn()
    assert conn.handled == list(range(3 * PER_TURN + 1))
    assert conn.queue.is_empty


async def test_messages_of_separate_reads_are_handled_at_once() -> None:
    conn = Connection()
    for number in range(3 * PER_TURN):
        conn.read(number)
    assert conn.handled == list(range(3 * PER_TURN))


async def test_later_message_does_not_overtake_one_that_waits() -> None:
    conn = Connection()
    conn.read(*range(PER_TURN + 1))
    conn.read(PER_TURN + 1)
    conn.queue.in_turn(lambda: conn.handled.append(PER_TURN + 2))
    await a_turn()
    assert conn.handled == list(range(PER_TURN + 3))


@pytest.mark.parametrize(("size", "most"), [(0, MAX_SMALL), (1 << 20, 0)])
async def test_nothing_more_is_read_while_too_much_waits(size: int, most: int) -> None:
    enough, too_much = Connection(), Connection()
    enough.read(*range(PER_TURN + most), size=size)
    too_much.read(*range(PER_TURN + most + 1), size=size)
    assert (enough.transport.reading, too_much.transport.reading) == (True, False)
    while not too_much.queue.is_empty:
        await a_turn()
    assert too_much.transport.reading


async def test_close_is_handled_after_what_waits_and_nothing_after_it() -> None:
    conn = Connection()
    conn.read(*range(PER_TURN + 1))
    conn.queue.finish(lambda: conn.handled.append(-1))
    assert conn.queue.has_ended
    assert not conn.transport.reading
    await a_turn()
    assert conn.handled == [*range(PER_TURN + 1), -1]


def test_close_is_handled_at_once_if_nothing_waits() -> None:
    conn = Connection()
    conn.queue.finish(lambda: conn.handled.append(-1))
    assert conn.handled == [-1]
    assert not conn.queue.has_ended


async def test_queued_frames_can_be_handled_or_dropped() -> None:
    conn = Connection()
    conn.read(*range(3 * PER_TURN))
    conn.queue.handle_all()
    assert conn.handled == list(range(3 * PER_TURN))
    conn.read(*range(3 * PER_TURN))
    conn.queue.clear()
    await a_turn()
    assert conn.handled == [*range(3 * PER_TURN), *range(PER_TURN)]


async def test_message_that_closes_the_connection_is_the_last_one() -> None:
    conn = Connection()
    conn.read(*range(PER_TURN))
    conn.queue.add(lambda: conn.handled.append(-1))
    conn.queue.add(conn.queue.clear)
    conn.queue.add(lambda: conn.handled.append(-2))
    await a_turn()
    assert conn.handled[-1] == -1


async def test_message_that_must_wait_is_handled_later_and_in_order() -> None:
    conn = Connection()
    conn.queue.hold(60)
    conn.read(0)
    conn.queue.in_turn(lambda: conn.handled.append(1))
    conn.queue.finish(lambda: conn.handled.append(2))
    await a_turn()
    assert (conn.handled, conn.transport.reading, conn.queue.is_empty) == ([], False, False)
    conn.queue.hold(0)
    await wait_until(lambda: conn.queue.is_empty)
    assert (conn.handled, conn.transport.reading) == ([0, 1, 2], True)


async def test_message_that_makes_others_wait_is_the_last_of_its_turn() -> None:
    conn = Connection()
    conn.read(*range(PER_TURN))
    conn.queue.add(lambda: conn.queue.hold(0))
    conn.queue.add(lambda: conn.handled.append(-1))
    await a_turn()
    assert conn.handled == list(range(PER_TURN))
    await wait_until(lambda: conn.queue.is_empty)
    assert conn.handled[-1] == -1


@pytest.mark.parametrize("end", ["handle_all", "clear"])
async def test_messages_of_a_client_that_has_to_wait_are_lost_with_its_connection(end: str) -> None:
    conn = Connection()
    conn.queue.hold(60)
    conn.read(*range(5))
    getattr(conn.queue, end)()
    assert (conn.handled, conn.queue.is_empty) == ([], True)


def test_unread_bytes_grow_old() -> None:
    backlog = Backlog(100, now=5.0)
    assert backlog.age(100, now=5.0) == 0.0
    backlog.grew(50)
    assert backlog.age(150, now=8.0) == 3.0
    assert backlog.age(51, now=9.0) == 4.0  # one byte of the first hundred is still here


def test_a_reader_that_keeps_up_is_never_old_though_something_always_waits() -> None:
    backlog = Backlog(100, now=0.0)
    for second in range(1, 60):
        backlog.grew(100)
        assert backlog.age(100, now=float(second)) <= 1.0


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 60)), max_size=60))
def test_age_of_the_backlog_is_never_overstated_and_at_most_halved(steps: list[tuple[int, int]]) -> None:
    waiting = deque([(10, 0)])  # (bytes, queued at)
    backlog, oldest_mark = Backlog(10, now=0.0), 0.0
    for now, (grown, sent) in enumerate(steps, start=1):
        if grown:
            waiting.append((grown, now))
            backlog.grew(grown)
        while sent and waiting:
            size, since = waiting.popleft()
            if size > sent:
                waiting.appendleft((size - sent, since))
            sent = max(sent - size, 0)
        if not waiting:
            return
        true_age = now - waiting[0][1]
        age = backlog.age(sum(size for size, _ in waiting), now=float(now))
        assert age <= true_age <= age + oldest_mark + 1
        oldest_mark = max(oldest_mark, age)


def test_stall_grows_while_nothing_is_read() -> None:
    stall = WriteStall(now=10.0)
    assert stall.age(500, now=11.0) == 0.0
    assert stall.age(500, now=14.0) == 3.0


def test_stall_restarts_whenever_something_is_read() -> None:
    stall = WriteStall(now=10.0)
    assert [stall.age(size, now) for size, now in [(500, 11.0), (499, 14.0), (498, 17.0)]] == [0.0, 0.0, 0.0]


def test_there_is_no_stall_when_nothing_waits() -> None:
    stall = WriteStall(now=10.0)
    assert [stall.age(0, now) for now in (11.0, 99.0)] == [0.0, 0.0]
