"""Races of a session that moves between two instances of this process: whatever is held up, every end is told once.

Each test stops one side at an exact point (`Gate`), lets the other one pass, and looks at what the client hears.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from time import monotonic
from typing import Any

import aiohttp
import pytest

from dragoman.domain.job import Outcome
from dragoman.domain.lease import SelfLease
from dragoman.protocol.codes import CancelReason, ProtocolError
from dragoman.protocol.peer import JobEnded, SessionMoved
from dragoman.protocol.session import SessionInit, SessionResume, Utterance
from dragoman.services.routing.router import drop
from dragoman.services.speech.session import Session
from dragoman.store.errors import RedisAway, UnknownOutcome
from integration.speech.test_session import OPUS, WHO
from support.cluster import Speaker
from support.in_process import TIMEOUT_S, InProcessInstance, InProcessNode, OpenInstance, RecordingSocket
from support.waiting import wait_until


class Gate:
    """Holds up calls of an async method, before it does anything or with its answer in hand."""

    def __init__(self, owner: Any, name: str, *, after: bool = False) -> None:
        self._opened, self._reached = asyncio.Event(), asyncio.Event()
        held: Callable[..., Coroutine[Any, Any, Any]] = getattr(owner, name)

        async def hold(*args: Any, **more: Any) -> Any:
            answer = await held(*args, **more) if after else None
            self._reached.set()
            await self._opened.wait()
            return answer if after else await held(*args, **more)

        setattr(owner, name, hold)

    async def reached(self) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await self._reached.wait()

    def open(self) -> None:
        self._opened.set()


class Client:
    """Speaks by one wire after another, and knows what it has heard."""

    def __init__(self) -> None:
        self.socket = RecordingSocket()
        self.session_id = self.token = ""
        self.last_seq = 0

    async def open(self, instance: InProcessInstance, **init_fields: Any) -> None:
        init = SessionInit("1", "web", "en", "es", resume=True, **init_fields)
        self.session_id = instance.services.sessions.open(self.socket, init, WHO).id
        (ack,) = await wait_until(lambda: self.socket.of("session_init_ack"), TIMEOUT_S)
        self.token = ack["resume_token"]

    def at(self, instance: InProcessInstance) -> Session:
        session = instance.services.sessions.find(self.session_id)
        assert session is not None
        return session

    def utter(self, instance: InProcessInstance, index: int) -> None:
        message = Utterance(self.session_id, index, True, "en", "es", OPUS, "opus", 16000)
        self.at(instance).utterance(message, self.socket)

    async def spoken(self, instance: InProcessInstance, node: InProcessNode, index: int) -> dict[str, Any]:
        """The node's job of an utterance, when the client has heard that it is there."""
        self.utter(instance, index)
        await wait_until(lambda: [m for m in self.socket.of("ui_event") if m["utterance_index"] == index], TIMEOUT_S)
        return next(job for job in node.jobs if job["utterance_index"] == index)

    async def resume(self, instance: InProcessInstance) -> None:
        """By a new wire; the old one is not known to be gone."""
        heard = [message["seq"] for message in self.socket.sent if message.get("seq")]
        self.last_seq = max([self.last_seq, *heard])
        self.socket = socket = RecordingSocket()
        message = SessionResume(self.session_id, self.token, self.last_seq)
        await instance.services.resumption.resume(socket, message, WHO)

    def results(self) -> list[int]:
        return [message["utterance_index"] for message in self.socket.of("translation_result")]

    async def hears(self, *indexes: int) -> None:
        await wait_until(lambda: self.results() == list(indexes), TIMEOUT_S, f"results {indexes}")


async def two(
    open_instance: OpenInstance, **init_fields: Any
) -> tuple[InProcessInstance, InProcessInstance, InProcessNode, Client]:
    a, b = await open_instance("a"), await open_instance("b")
    node = await a.node("n")
    await wait_until(lambda: b.knows("n"), TIMEOUT_S)
    client = Client()
    await client.open(a, **init_fields)
    return a, b, node, client


def ends_handled(instance: InProcessInstance) -> float:
    return instance.count("dragoman_inbox_done_total", kind="job_ended")


async def test_result_that_arrives_during_a_restore_is_delivered(open_instance: OpenInstance) -> None:
    a, b, node, client = await two(open_instance)
    job = await client.spoken(a, node, 0)
    looking = Gate(b.services.resumption._jobs, "get")
    coming = asyncio.ensure_future(client.resume(b))
    await looking.reached()
    a.services.sessions.session_moved(SessionMoved(client.session_id, 2))
    node.answer(job)
    await wait_until(lambda: ends_handled(b) == 1, TIMEOUT_S)
    looking.open()
    await coming
    await client.hears(0)


async def test_result_of_a_job_unknown_to_the_former_owner_is_delivered(open_instance: OpenInstance) -> None:
    """B has the session from before that job was cut, and is about to have it again."""
    a, b, node, client = await two(open_instance)
    await client.resume(b)
    b.services.handlers.register(SessionMoved, lambda _: None, rehome=drop)  # it arrives too late
    await client.resume(a)
    job = await client.spoken(a, node, 0)
    taken = Gate(b.services.resumption._store, "resume", after=True)
    coming = asyncio.ensure_future(client.resume(b))
    await taken.reached()
    node.answer(job)
    await wait_until(lambda: ends_handled(b) == 1, TIMEOUT_S)
    taken.open()
    await coming
    await client.hears(0)


async def test_result_parked_after_a_resume_checked_is_delivered(open_instance: OpenInstance) -> None:
    a, b, node, client = await two(open_instance)
    job = await client.spoken(a, node, 0)
    looking = Gate(b.services.resumption._jobs, "get")
    parking = Gate(b.stores.sessions, "park")
    coming = asyncio.ensure_future(client.resume(b))
    await looking.reached()
    a.services.sessions.session_moved(SessionMoved(client.session_id, 2))
    node.answer(job)
    await parking.reached()
    looking.open()
    await coming
    parking.open()
    await client.hears(0)


async def test_result_is_not_parked_when_its_session_was_resumed_meanwhile(
    open_instance: OpenInstance,
) -> None:
    a, b, node, client = await two(open_instance)
    job = await client.spoken(a, node, 0)
    a.services.sessions.drain()
    await a.services.sessions.hand_over()
    parking = Gate(a.stores.sessions, "park")
    node.answer(job)
    await parking.reached()
    await client.resume(b)
    parking.open()
    await client.hears(0)


async def test_a_session_that_went_on_elsewhere_takes_no_job_with_it_when_its_copy_here_ends(
    open_instance: OpenInstance,
) -> None:
    """A does not know yet that B has it, and thinks that nobody came back."""
    a, b, node, client = await two(open_instance)
    job = await client.spoken(a, node, 0)
    stale, old_wire = client.at(a), client.socket
    a.services.handlers.register(SessionMoved, lambda _: None, rehome=drop)  # it arrives too late
    a.services.sessions.socket_closed(old_wire)
    await client.resume(b)
    ending = Gate(a.stores.sessions, "end", after=True)
    a.services.sessions._end_detached(stale, "grace period over")
    await ending.reached()
    ending.open()
    node.answer(job)
    await client.hears(0)
    assert not node.cancelled


async def test_of_two_connections_that_resume_at_once_the_later_one_has_the_session(
    open_instance: OpenInstance,
) -> None:
    a, b, node, client = await two(open_instance)
    job = await client.spoken(a, node, 0)
    looking = Gate(b.services.resumption._jobs, "get")
    first = asyncio.ensure_future(client.resume(b))
    await looking.reached()
    second = asyncio.ensure_future(client.resume(b))
    for _ in range(5):  # whatever it asks of Redis is answered before these
        await b.redis.call("GET", b.keys.session_owner(client.session_id))
    looking.open()
    await asyncio.gather(first, second)
    assert client.at(b).socket is client.socket
    node.answer(job)
    await client.hears(0)
    job = await client.spoken(b, node, 1)
    node.answer(job)
    await client.hears(0, 1)


async def test_connection_closed_before_its_turn_takes_over_no_session(
    open_instance: OpenInstance,
) -> None:
    a, b, node, client = await two(open_instance)
    await client.spoken(a, node, 0)
    looking = Gate(b.services.resumption._jobs, "get")
    first = asyncio.ensure_future(client.resume(b))
    await looking.reached()
    second = asyncio.ensure_future(client.resume(b))
    await asyncio.sleep(0)
    client.socket.closed = True
    looking.open()
    with pytest.raises(ProtocolError, match="connection is closed"):
        await second
    await first
    assert client.at(b).socket is not client.socket


async def test_restore_releases_a_session_that_was_resumed_elsewhere(
    open_instance: OpenInstance,
) -> None:
    a, b, node, client = await two(open_instance)
    job = await client.spoken(a, node, 0)
    looking = Gate(b.services.resumption._jobs, "get")
    coming = asyncio.ensure_future(client.resume(b))
    await looking.reached()
    left = client.socket
    await client.resume(a)
    looking.open()
    await coming
    assert b.services.sessions.find(client.session_id) is None
    assert left.closed
    node.answer(job)
    await client.hears(0)


async def test_cancelled_job_of_another_driver_is_reported_failed(open_instance: OpenInstance) -> None:
    a, b, node, client = await two(open_instance)
    await client.spoken(a, node, 0)
    await client.resume(b)
    (one,) = client.at(b).remote_jobs.values()
    cancelled = JobEnded(client.session_id, 0, one.job_id, one.trace_id, Outcome.CANCELLED, "DUPLICATE_REQUEST")
    await b.services.resumption.job_ended(cancelled)
    (error,) = await wait_until(lambda: client.socket.of("error"), TIMEOUT_S)
    assert error["details"]["utterance_index"] == 0


async def test_the_end_of_an_utterance_is_numbered_and_found_by_a_client_that_resumes_elsewhere(
    open_instance: OpenInstance,
) -> None:
    a, b, node, client = await two(open_instance, utterance_end=True)
    for index in (0, 1):
        job = await client.spoken(a, node, index)
        texts = {"text_asr": "", "text_translated": ""} if index else {}
        node.answer(job, **texts)
    await wait_until(lambda: len(client.socket.of("utterance_end")) == 2, TIMEOUT_S)
    sent = [(m["seq"], m["type"]) for m in client.socket.sent if m["type"] in ("translation_result", "utterance_end")]
    assert [name for _, name in sorted(sent)] == ["translation_result", "utterance_end", "utterance_end"]
    client.socket.sent.clear()  # it was lost on the way
    await client.resume(b)
    ends = {end["utterance_index"]: end["state"] for end in client.socket.of("utterance_end")}
    assert ends == {0: "sent", 1: "empty"}
    assert client.results() == [0]


async def test_an_utterance_that_its_former_owner_skipped_ends_as_skipped_at_the_new_one(
    open_instance: OpenInstance,
) -> None:
    a, b, node, client = await two(open_instance, utterance_end=True)
    job = await client.spoken(a, node, 0)
    await client.resume(b)
    a.services.dispatcher.cancel(job["job_id"], CancelReason.SKIPPED)
    (end,) = await wait_until(lambda: client.socket.of("utterance_end"), TIMEOUT_S)
    assert (end["utterance_index"], end["state"]) == (0, "skipped")
    assert not client.socket.of("error")


async def test_job_record_names_the_release_state_after_its_session_resumed_on_another_instance(
    open_instance: OpenInstance,
) -> None:
    a, b, node, client = await two(open_instance)
    first, second, empty = [await client.spoken(a, node, index) for index in (0, 1, 2)]
    await client.resume(b)
    node.answer(second)
    node.answer(first)
    node.answer(empty, text_asr="", text_translated="")
    await client.hears(1, 0)
    for job, state in ((first, "backfilled"), (second, "sent"), (empty, "empty")):
        await wait_until(partial(has_release_state, b, job, state), TIMEOUT_S)


async def has_release_state(instance: InProcessInstance, job: dict[str, Any], state: str) -> bool:
    return (await instance.job(job["job_id"])).get("release_state") == state


async def test_a_session_that_could_not_be_restored_ends_when_its_grace_is_over(open_instance: OpenInstance) -> None:
    a, b, node, client = await two(open_instance)
    await client.spoken(a, node, 0)

    async def away(job: str) -> None:
        raise RedisAway("gone")

    b.services.resumption._jobs.get = away  # type: ignore[method-assign]
    with pytest.raises(RedisAway):
        await client.resume(b)
    assert b.services.sessions.find(client.session_id) is None
    await wait_until(lambda: b.redis.call("ZCARD", b.keys.sessions_grace), TIMEOUT_S)


async def test_result_parked_for_a_full_inbox_is_collected(open_instance: OpenInstance) -> None:
    a, b, node, client = await two(open_instance)
    job = await client.spoken(a, node, 0)
    await client.resume(b)
    await wait_until(lambda: a.services.sessions.find(client.session_id) is None, TIMEOUT_S)
    inboxes = a.services.router.inboxes
    limits, inboxes.settings = inboxes.settings, type(inboxes.settings)(maxlen=0)
    node.answer(job)
    await wait_until(lambda: b.redis.call("LLEN", b.keys.session_parked(client.session_id)), TIMEOUT_S)
    inboxes.settings = limits
    await b.services.resumption.collect_all()
    await client.hears(0)


async def test_parked_result_is_kept_until_it_is_delivered(open_instance: OpenInstance) -> None:
    """The answer of Redis that holds it is lost, and the client comes back once more."""
    a, b, node, client = await two(open_instance)
    job = await client.spoken(a, node, 0)
    await a.services.sessions.hand_over()
    node.answer(job)
    parked = a.keys.session_parked(client.session_id)
    await wait_until(lambda: a.redis.call("LLEN", parked), TIMEOUT_S)
    read = b.stores.sessions.parked

    async def lost(session: str, epoch: int) -> list[bytes] | None:
        b.stores.sessions.parked = read  # type: ignore[method-assign]
        await read(session, epoch)
        raise UnknownOutcome("its answer is lost")

    b.stores.sessions.parked = lost  # type: ignore[method-assign]
    with pytest.raises(UnknownOutcome):
        await client.resume(b)
    await client.resume(b)
    await client.hears(0)

    async def told() -> bool:
        return not await b.redis.call("LLEN", parked)

    await wait_until(told, TIMEOUT_S)


class Paused(SelfLease):
    """Of an instance that has not run for longer than its presence lasts."""

    def valid(self, now: float) -> bool:
        return False


async def test_paused_instance_sends_nothing_for_a_session_that_was_resumed_elsewhere(
    open_instance: OpenInstance,
) -> None:
    """Its client says it there again, and is answered there."""
    a, b = await open_instance("a"), await open_instance("b")
    await b.node("n", working=True)
    async with aiohttp.ClientSession() as http:
        speaker = Speaker(await http.ws_connect(f"ws://127.0.0.1:{a.instance.ports.listener.port}/ws/session"))
        await speaker.init(resume=True)
        presence = a.services.presence
        lease, presence.lease = presence.lease, Paused(presence.ttl_s)
        waiting = a.count("dragoman_lease_parked_total")
        await speaker.utterance(0)
        await wait_until(lambda: a.count("dragoman_lease_parked_total") > waiting, TIMEOUT_S)
        client = Client()
        client.session_id, client.token = speaker.session_id, speaker.token
        await client.resume(b)
        a.services.sessions.session_moved(SessionMoved(client.session_id, 2))
        presence.lease = lease
        await presence.run_once()  # it does what had waited
        async with asyncio.timeout(TIMEOUT_S):
            await a.services.tasks.settled()
    client.utter(b, 0)
    await client.hears(0)


@pytest.mark.parametrize(("part", "step", "after"), [("takeover", "_leave_behind", False), ("store", "epoch", True)])
async def test_a_session_that_is_resumed_while_its_owner_is_taken_over_does_not_end_with_the_grace_of_that_owner(
    open_instance: OpenInstance, part: str, step: str, after: bool
) -> None:
    _, b, _, client = await two(open_instance)
    takeover = b.services.takeover
    takeover._renewed_at["a"] = monotonic()
    ending = Gate(takeover if part == "takeover" else b.stores.sessions, step, after=after)
    taking_over = asyncio.ensure_future(takeover._end_sessions("a"))
    await ending.reached()
    await client.resume(b)
    ending.open()
    await taking_over
    granted = await b.redis.call("ZRANGE", b.keys.sessions_grace, 0, -1)
    assert f"{client.session_id}|2".encode() not in granted


async def test_a_session_that_is_resumed_when_its_grace_is_over_keeps_its_turn(open_instance: OpenInstance) -> None:
    a, b, _, client = await two(open_instance)
    await a.stores.turns.bind(client.session_id, "turn-1", "n")
    await b.stores.sessions.leave_behind(client.session_id, 1)

    async def overdue() -> list[tuple[str, int]]:
        return [(client.session_id, 1)]

    b.stores.sessions.overdue = overdue  # type: ignore[assignment,method-assign]
    ending = Gate(b.stores.sessions, "end")
    sweep = asyncio.ensure_future(b.services.resumption.end_overdue())
    await ending.reached()
    await client.resume(a)
    ending.open()
    await sweep
    assert await a.stores.turns.current(client.session_id) == "turn-1"
    assert not await b.redis.call("ZCARD", b.keys.sessions_grace)
    await a.stores.turns.end(client.session_id, "turn-1")


# -- closing -------------------------------------------------------------------------------------


async def answered(instance: InProcessInstance) -> None:
    """Whatever it has asked of Redis, and asks when it has the answer, is answered before these."""
    for _ in range(5):
        await instance.redis.call("EXISTS", instance.keys.instances)


async def test_closing_client_that_lost_its_connection_gets_outstanding_results_elsewhere(
    open_instance: OpenInstance,
) -> None:
    a, b, node, client = await two(open_instance)
    job = await client.spoken(a, node, 0)
    client.at(a).close()
    a.services.sessions.socket_closed(client.socket)
    await answered(a)
    await client.resume(b)
    node.answer(job)
    await client.hears(0)
    client.at(b).close()
    await wait_until(lambda: client.socket.of("session_close_ack"), TIMEOUT_S)


async def test_client_can_reconnect_to_close_its_session(open_instance: OpenInstance) -> None:
    a, _, node, client = await two(open_instance)
    job = await client.spoken(a, node, 0)
    client.at(a).close()
    a.services.sessions.socket_closed(client.socket)
    await answered(a)
    await client.resume(a)
    client.utter(a, 1)  # what it had said, as far as it knows, before it said that this was all
    client.at(a).close()
    (later,) = await wait_until(lambda: [one for one in node.jobs if one["utterance_index"] == 1], TIMEOUT_S)
    node.answer(job)
    node.answer(later)
    await client.hears(0, 1)
    await wait_until(lambda: client.socket.of("session_close_ack"), TIMEOUT_S)


@pytest.mark.parametrize("connected", [True, False])
async def test_last_messages_of_a_closed_session_are_kept_for_a_client_that_missed_them(
    open_instance: OpenInstance, connected: bool
) -> None:
    """Nobody can tell what was on the wire when it broke."""
    a, b, node, client = await two(open_instance)
    job = await client.spoken(a, node, 0)
    client.at(a).close()
    had = client.socket.sent.copy()
    if not connected:
        a.services.sessions.socket_closed(client.socket)
    node.answer(job)
    await wait_until(lambda: a.services.sessions.find(client.session_id) is None, TIMEOUT_S)
    client.socket.sent = had
    await client.resume(b)
    await client.hears(0)
    assert client.socket.of("session_close_ack")


async def test_a_closed_session_ends_when_its_grace_is_over(open_instance: OpenInstance) -> None:
    a = await open_instance("a", speech__resume_grace_s=1)
    client = Client()
    await client.open(a)
    client.at(a).close()
    state = a.keys.session_state(client.session_id)
    await wait_until(lambda: a.redis.call("ZCARD", a.keys.sessions_grace), TIMEOUT_S)
    assert await a.redis.call("EXISTS", state)

    async def swept() -> bool:
        await a.services.resumption.end_overdue()
        return not await a.redis.call("EXISTS", state)

    await wait_until(swept, TIMEOUT_S)
    assert not await a.redis.call("ZCARD", a.keys.sessions_grace)


async def test_a_closing_session_is_handed_over_when_its_instance_ends(open_instance: OpenInstance) -> None:
    a, b, node, client = await two(open_instance)
    job = await client.spoken(a, node, 0)
    client.at(a).close()
    await a.services.sessions.hand_over()
    await answered(a)
    await client.resume(b)
    node.answer(job)
    await client.hears(0)
