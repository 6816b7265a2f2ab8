"""Lost connections: what is resumed, what is said again, what is given up."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from dragoman.client import (
    Failed,
    Renewed,
    Result,
    Resumed,
    Session,
    SessionClosed,
    SessionError,
    SessionLost,
    Unreachable,
)
from dragoman.protocol.codes import Close
from dragoman.protocol.session import Error, SessionClose, SessionInit, SessionResume, TtsStarted
from unit.client.fake_server import QUICK, FakeServer, run_of, serving, session_at


@asynccontextmanager
async def two_instances() -> AsyncIterator[tuple[FakeServer, FakeServer]]:
    """Of one cluster: a session of one can be resumed at the other."""
    async with serving() as one, serving() as other:
        other.sessions = one.sessions
        yield one, other


async def back(session: Session) -> Resumed | Renewed:
    """The next word about a lost connection."""
    async for event in session:
        if isinstance(event, Resumed | Renewed):
            return event
    raise AssertionError("the session is over")


# ---------------------------------------------------------------- resumed


async def test_a_lost_connection_is_resumed_and_what_was_not_cut_is_said_again(
    session: Session, server: FakeServer
) -> None:
    await session.send(run_of(1), final=True)
    await session.send(run_of(2))
    await session.send(run_of(3))
    await server.until(lambda: server.session.chunk_seqs == [1, 2, 3])
    server.drops()
    assert await back(session) == Resumed("s-1", 2, 0)
    resume = await server.hears(SessionResume)
    assert (resume.session_id, resume.resume_token) == ("s-1", "token-1")
    await session.send(run_of(4))
    await session.cut()
    await session.finish()
    assert server.session.chunk_seqs == [1, 2, 3, 2, 3, 4, 5]
    assert server.session.utterances == [run_of(1), run_of(9)]


async def test_a_session_is_resumed_with_its_newest_token(server: FakeServer) -> None:
    async with session_at(server, token="first") as session:
        session.use_token("second")
        server.drops()
        await back(session)
        assert (await server.hears(SessionResume)).token == "second"


async def test_results_of_the_time_between_come_once(server: FakeServer) -> None:
    server.answers = False
    async with session_at(server) as session:
        for _ in range(4):
            await session.utterance(run_of(1))
        await server.until(lambda: len(server.session.utterances) == 4)
        server.translates(0)
        results = session.results()
        assert (await anext(results)).index == 0
        server.drops()
        server.translates(1)  # nobody is there, or nobody reads it any more
        await server.connections[0].gone.wait()
        server.translates(2)
        await server.hears(SessionResume)
        server.translates(3)
        await session.close()
        assert [result.index async for result in session.results()] == [1, 2, 3]


async def test_a_session_is_resumed_at_the_next_address() -> None:
    async with two_instances() as (one, other), session_at(one, url=[one.url, other.url]) as session:
        await session.send(run_of(2))
        await one.until(lambda: one.session.chunk_seqs)
        await one.close()
        assert await back(session) == Resumed("s-1", 1, 0)
        await session.cut()
        await other.until(lambda: other.session.utterances == [run_of(2)])


@pytest.mark.parametrize("code", [Close.SHUTDOWN, Close.SLOW_CONSUMER, Close.LEASE_LOST, 1011])
async def test_a_close_that_says_come_back_is_obeyed(session: Session, server: FakeServer, code: int) -> None:
    server.connections[-1].close(code)
    assert await back(session) == Resumed("s-1", 0, 0)


async def test_utterances_that_did_not_arrive_are_sent_again(session: Session, server: FakeServer) -> None:
    await session.utterance(run_of(1))
    await server.until(lambda: server.session.utterances)
    server.drops()
    # Sent before we know that the connection is gone: nobody reads them.
    assert [await session.utterance(run_of(2)), await session.utterance(run_of(3))] == [1, 2]
    await session.finish()
    assert server.session.utterances == [run_of(1), run_of(2), run_of(3)]


async def test_sender_waits_during_a_reconnect_and_continues(session: Session, server: FakeServer) -> None:
    server.refuses = Error(code="SCHEDULER_DEPENDENCY_DOWN", message="Redis is away")
    server.drops()
    await server.connections[-1].gone.wait()
    await session.send(run_of(1), final=True)
    await session.finish()
    assert server.session.utterances == [run_of(1)]
    resumes = [message for message in server.received if isinstance(message, SessionResume)]
    assert len(resumes) == 2


async def test_a_connection_lost_again_while_resuming_is_resumed(session: Session, server: FakeServer) -> None:
    for _ in range(5):
        await session.send(run_of(1))
    await server.until(lambda: len(server.session.chunk_seqs) == 5)
    for _ in range(3):
        server.drops()
        assert isinstance(await back(session), Resumed)
    await session.cut()
    await session.finish()
    assert server.session.utterances == [run_of(5)]


async def test_playback_goes_on_over_a_lost_connection(session: Session, server: FakeServer) -> None:
    await session.utterance(run_of(1))
    session.tts_started(await anext(session.results()))
    assert await server.hears(TtsStarted)
    server.drops()
    assert (await server.hears(TtsStarted)).group_id == "group_s-1_0"


async def test_a_server_that_forgot_the_session_of_a_living_connection_is_asked_for_it(
    session: Session, server: FakeServer
) -> None:
    server.connections[-1].send(Error(code="INVALID_SESSION", message="There is no such session here."))
    assert await back(session) == Resumed("s-1", 0, 0)


@pytest.mark.parametrize("seed", range(8))
async def test_every_utterance_arrives_once_after_broken_connections(seed: int) -> None:
    random = Random(seed)
    said: list[bytes] = []
    async with two_instances() as (one, other):
        async with session_at(one, url=[one.url, other.url]) as session:
            for number in range(40):
                pieces = [run_of(1 + (number + at) % 7) for at in range(random.randint(1, 4))]
                said.append(b"".join(pieces))
                for piece in pieces:
                    await session.send(piece)
                    await asyncio.sleep(random.choice((0, 0, 0.003)))
                    for server in (one, other):
                        if server.connections and random.random() < 0.15:
                            server.drops()
                await session.cut()
            await session.finish()
            results = [event.text_asr async for event in session if isinstance(event, Result)]
        assert one.session.utterances == said
        assert results == [f"{len(audio)} bytes" for audio in said]
        assert len(one.connections) + len(other.connections) > 4


async def test_sender_that_never_awaits_notices_a_lost_connection(server: FakeServer) -> None:
    async with session_at(server, audio_format="pcm16") as session:
        for number in range(100):  # in all more than is kept, between two cuts less
            if number % 30 == 15:
                server.drops()
                await server.connections[-1].gone.wait()
            await session.send(bytes([number]) * 48_000, final=number % 10 == 9)
        await session.finish()
        assert [piece[at] for piece in server.session.utterances for at in range(0, 480_000, 48_000)] == [*range(100)]


# ---------------------------------------------------------------- not resumed


async def test_a_session_that_cannot_be_resumed_is_lost(session: Session, server: FakeServer) -> None:
    server.forgets = True
    server.drops()
    with pytest.raises(SessionLost, match="There is no such session"):
        await anext(session.events())
    with pytest.raises(SessionLost):
        await session.send(run_of(1))


async def test_a_lost_session_has_a_new_one_in_its_place_where_that_is_wanted(server: FakeServer) -> None:
    async with session_at(server, on_lost="new") as session:
        await session.send(run_of(1))
        await server.until(lambda: server.session.chunk_seqs)
        server.forgets = True
        server.drops()
        assert await back(session) == Renewed("s-2", "s-1")
        assert session.id == "s-2"
        await session.send(run_of(2), final=True)
        await session.finish()
        assert server.sessions["s-2"].utterances == [run_of(2)]
        assert server.sessions["s-2"].chunk_seqs == [1]


@pytest.mark.parametrize("asks", [True, False])
async def test_without_a_resume_token_a_lost_connection_is_a_lost_session(server: FakeServer, asks: bool) -> None:
    server.keeps_sessions = not asks
    async with session_at(server, resume=asks) as session:
        server.drops()
        with pytest.raises(SessionLost, match="the connection was lost"):
            await anext(session.events())
    async with session_at(server, resume=asks, on_lost="new") as session:
        server.drops()
        assert await back(session) == Renewed("s-3", "s-2")
    assert not any(isinstance(message, SessionResume) for message in server.received)


async def test_a_server_that_opens_another_session_instead_has_not_resumed_ours(server: FakeServer) -> None:
    async with session_at(server, on_lost="new") as session:
        server.silent = True
        server.drops()
        await server.hears(SessionResume)
        connection = server.connections[-1]
        server.silent = False
        server._init(connection, SessionInit("", "web", "en", "es", resume=True))
        assert await back(session) == Renewed("s-3", "s-1")


async def test_a_close_that_says_do_not_come_back_ends_the_session(session: Session, server: FakeServer) -> None:
    server.connections[-1].close(Close.REPLACED, b"resumed elsewhere")
    with pytest.raises(SessionError, match="resumed elsewhere") as error:
        await anext(session.events())
    assert error.value.code == "REPLACED"
    assert len(server.connections) == 1


async def test_session_ends_and_all_callers_fail_when_the_server_stays_unreachable(server: FakeServer) -> None:
    async with session_at(server, timing=dataclasses.replace(QUICK, reconnect_s=0.1)) as session:
        speaking = asyncio.ensure_future(session.speak([run_of(5)] * 1000))
        await server.close()
        with pytest.raises(Unreachable):
            await speaking
        with pytest.raises(Unreachable):
            await anext(session.results())


# ---------------------------------------------------------------- closing


async def test_a_connection_lost_while_closing_is_resumed_to_close(server: FakeServer) -> None:
    server.acks_close = False
    async with session_at(server) as session:
        await session.send(run_of(3))
        closing = asyncio.ensure_future(session.close("enough"))
        await server.hears(SessionClose)
        server.acks_close = True
        server.drops()
        await closing
        assert (await server.hears(SessionClose)).reason == "enough"
        assert [result.text_asr async for result in session.results()] == ["15 bytes"]


async def test_a_session_lost_while_closing_is_closed(server: FakeServer) -> None:
    server.acks_close = False
    async with session_at(server) as session:
        closing = asyncio.ensure_future(session.close())
        await server.hears(SessionClose)
        server.forgets = True
        server.drops()
        await closing
        assert [event async for event in session] == []


async def failures(session: Session) -> list[int]:
    return [event.index async for event in session if isinstance(event, Failed)]


async def test_session_lost_while_closing_fails_its_unanswered_utterances(server: FakeServer) -> None:
    server.acks_close = False
    async with session_at(server) as session:
        await session.send(run_of(1), final=True)
        assert (await anext(session.results())).index == 0
        server.answers = False
        await session.send(run_of(2), final=True)
        await server.until(lambda: server.session.next_index == 2)
        closing = asyncio.ensure_future(session.close())
        await server.hears(SessionClose)
        server.forgets = True
        server.drops()
        await closing
        assert await failures(session) == [1]


async def test_utterances_unanswered_by_a_session_lost_while_closing_fail(server: FakeServer) -> None:
    server.answers = server.acks_close = False
    async with session_at(server) as session:
        numbers = [await session.utterance(run_of(length)) for length in (1, 2)]
        closing = asyncio.ensure_future(session.close())
        await server.hears(SessionClose)
        server.forgets = True
        server.drops()
        await closing
        assert await failures(session) == numbers


async def test_a_server_that_does_not_say_that_the_session_is_closed_is_not_taken_for_having_answered(
    server: FakeServer,
) -> None:
    server.answers = server.acks_close = False
    async with session_at(server, timing=dataclasses.replace(QUICK, close_s=0.1)) as session:
        number = await session.utterance(run_of(1))
        await session.close()
        assert await failures(session) == [number]


async def test_close_during_a_reconnect_ends_waiting_senders(server: FakeServer) -> None:
    async with session_at(server, timing=dataclasses.replace(QUICK, close_s=0.1)) as session:
        server.silent = True
        server.drops()
        await server.hears(SessionResume)
        speaking = asyncio.ensure_future(session.send(run_of(1)))
        await session.close()
        with pytest.raises(SessionClosed):
            await speaking
