"""A PostgreSQL that is killed, hangs, or was never there: calls say so in time, and the first one afterwards works."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator

import asyncpg  # type: ignore[import-untyped]
import pytest

from dragoman.archive import ArchiveAway, Receipt, Status
from dragoman.archive.postgres import PostgresArchive
from dragoman.embedded.engine import free_port
from dragoman.tools.postgres import PostgresServer
from integration.archive.letters import letter, verdicts
from support.databases import ask

LIMIT_S = 1.0
CALLS: dict[str, Callable[[PostgresArchive], Awaitable[object]]] = {
    "open": lambda archive: archive.open(),
    "save": lambda archive: archive.save([letter(1, 2)]),
    "receipts": lambda archive: archive.receipts([Receipt(2, Status.READ, (1,))]),
    "history": lambda archive: archive.history(1, 2, limit=5),
    "user_by_name": lambda archive: archive.user_by_name("alice"),
}


@pytest.fixture
def url(postgres_server: PostgresServer) -> str:
    return postgres_server.new_database()


@pytest.fixture
def archive(url: str, runner: asyncio.Runner) -> Iterator[PostgresArchive]:
    made = PostgresArchive(url, pool=4, timeout_s=LIMIT_S)
    yield made
    runner.run(made.close())


async def eventually(call: Callable[[], Awaitable[object]]) -> None:
    """The database is back: the call works before long, by itself."""
    async with asyncio.timeout(20):
        while True:
            try:
                await call()
                return
            except ArchiveAway:
                await asyncio.sleep(0.02)


async def test_a_server_that_was_killed_and_comes_back(own_postgres: PostgresServer) -> None:
    archive = PostgresArchive(own_postgres.new_database(), pool=4, timeout_s=5.0)
    try:
        await asyncio.gather(*(archive.save([letter(1, 2)]) for _ in range(10)))
        own_postgres.kill()
        for call in CALLS.values():
            with pytest.raises(ArchiveAway):
                await call(archive)
        own_postgres.start()
        await eventually(lambda: archive.save([letter(1, 2)]))
        seqs = [message.seq for message in await archive.history(1, 2, limit=50)]
        assert seqs == list(range(len(seqs), 0, -1))
        own_postgres.stop()
        with pytest.raises(ArchiveAway):
            await archive.save([letter(1, 2)])
        own_postgres.start()
        await eventually(lambda: archive.save([letter(1, 2)]))
    finally:
        await archive.close()


async def test_a_server_that_hangs_is_given_up_in_time(own_postgres: PostgresServer) -> None:
    archive = PostgresArchive(own_postgres.new_database(), pool=4, timeout_s=LIMIT_S)
    try:
        await asyncio.gather(*(archive.save([letter(1, 2)]) for _ in range(10)))
        own_postgres.pause()
        began = time.monotonic()
        told = await asyncio.gather(*(call(archive) for call in CALLS.values()), return_exceptions=True)
        assert {type(answer) for answer in told} == {ArchiveAway}
        assert time.monotonic() - began < 8 * LIMIT_S
        own_postgres.resume()
        await eventually(lambda: archive.save([letter(1, 2)]))
    finally:
        own_postgres.resume()
        await archive.close()


async def test_closing_does_not_wait_for_a_server_that_hangs(own_postgres: PostgresServer) -> None:
    archive = PostgresArchive(own_postgres.new_database(), pool=4, timeout_s=LIMIT_S)
    await archive.open()
    own_postgres.pause()
    try:
        async with asyncio.timeout(8 * LIMIT_S):
            await archive.close()
    finally:
        own_postgres.resume()


async def test_a_server_that_was_never_there_is_tried_again_by_every_call() -> None:
    archive = PostgresArchive(f"postgresql://postgres@127.0.0.1:{free_port()}/chat", timeout_s=LIMIT_S)
    for _ in range(2):
        for call in CALLS.values():
            with pytest.raises(ArchiveAway, match=r"127\.0\.0\.1"):
                await call(archive)
    await archive.close()


async def test_the_password_is_in_no_message() -> None:
    archive = PostgresArchive(f"postgresql://me:hushhush@127.0.0.1:{free_port()}/chat", timeout_s=LIMIT_S)
    with pytest.raises(ArchiveAway) as told:
        await archive.open()
    assert "hushhush" not in str(told.value)
    await archive.close()


async def test_a_database_that_is_not_there_yet(postgres_server: PostgresServer) -> None:
    archive = PostgresArchive(postgres_server.url("not_there"), timeout_s=5.0)
    with pytest.raises(ArchiveAway, match="not_there"):
        await archive.open()
    await archive.close()


async def test_connections_ended_by_the_operator_are_made_anew(
    archive: PostgresArchive, postgres_server: PostgresServer
) -> None:
    await asyncio.gather(*(archive.save([letter(1, 2)]) for _ in range(10)))
    await ask(
        postgres_server.url(),
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'dragoman'",
    )
    await eventually(lambda: archive.save([letter(1, 2)]))
    assert len(await archive.history(1, 2, limit=50)) >= 11


async def test_a_conversation_held_by_a_frozen_writer_holds_up_only_itself(archive: PostgresArchive, url: str) -> None:
    await archive.save([letter(1, 2), letter(3, 4)])
    frozen = await asyncpg.connect(url)
    await frozen.execute("BEGIN")
    await frozen.execute("SELECT FROM conversation WHERE low_user_id = 1 FOR UPDATE")
    with pytest.raises(ArchiveAway):
        await archive.save([letter(1, 2)])
    assert verdicts(await archive.save([letter(3, 4)])) == ["saved"]
    await frozen.execute("ROLLBACK")
    await frozen.close()
    assert verdicts(await archive.save([letter(1, 2)])) == ["saved"]


async def test_cancelled_call_leaves_no_open_transaction(archive: PostgresArchive) -> None:
    await archive.save([letter(1, 2)])
    for turns in range(12):
        leaving = asyncio.ensure_future(archive.save([letter(1, 2)]))
        for _ in range(turns):
            await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
    assert verdicts(await archive.save([letter(1, 2)])) == ["saved"]
    seqs = [message.seq for message in await archive.history(1, 2, limit=50)]
    assert seqs == list(range(len(seqs), 0, -1))


async def test_closed_archive_is_unavailable(archive: PostgresArchive) -> None:
    await archive.open()
    await archive.close()
    with pytest.raises(ArchiveAway):
        await archive.save([letter(1, 2)])
