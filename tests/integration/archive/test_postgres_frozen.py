"""Another writer stands still in the middle of a transaction, as a stopped instance does: who waits for it."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import asyncpg  # type: ignore[import-untyped]
import pytest

from dragoman.archive import NewMessage, SaveOutcome, SaveVerdict
from dragoman.archive.postgres import PostgresArchive
from dragoman.tools.postgres import PostgresServer
from integration.archive.letters import ids, letter, verdicts
from support.databases import ask

HOLD = "SELECT FROM conversation WHERE low_user_id = 1 AND high_user_id = 2 FOR UPDATE"
CREATE = "INSERT INTO conversation (low_user_id, high_user_id, updated_ms) VALUES (1, 2, 0)"


@pytest.fixture
def url(postgres_server: PostgresServer) -> str:
    return postgres_server.new_database()


@pytest.fixture
def archive(url: str, runner: asyncio.Runner) -> Iterator[PostgresArchive]:
    made = PostgresArchive(url, pool=4)
    yield made
    runner.run(made.close())


@asynccontextmanager
async def frozen(url: str, sql: str) -> AsyncIterator[None]:
    """Somebody did this, and neither commits nor goes away."""
    db = await asyncpg.connect(url)
    try:
        await db.execute("BEGIN")
        await db.execute(sql)
        yield
    finally:
        await db.execute("ROLLBACK")
        await db.close()


def asked(archive: PostgresArchive, row: NewMessage) -> asyncio.Task[list[SaveOutcome]]:
    return asyncio.create_task(archive.save([row]))


@pytest.mark.parametrize("others", [1, 300])
async def test_locked_conversation_does_not_delay_others(archive: PostgresArchive, url: str, others: int) -> None:
    await archive.save([letter(1, 2), *(letter(number, 1000) for number in range(3, 3 + others))])
    async with frozen(url, HOLD):
        waiting = asked(archive, letter(1, 2))
        told = await asyncio.gather(*(archive.save([letter(number, 1000)]) for number in range(3, 3 + others)))
        assert [outcomes[0].verdict for outcomes in told] == [SaveVerdict.SAVED] * others
        assert not waiting.done(), "and what waits for it is not given up meanwhile"
    assert verdicts(await waiting) == ["saved"]


async def test_a_conversation_it_was_about_to_make_keeps_no_old_one_waiting(archive: PostgresArchive, url: str) -> None:
    await archive.save([letter(3, 4)])
    async with frozen(url, CREATE):
        waiting = asked(archive, letter(1, 2))
        assert verdicts(await archive.save([letter(3, 4)])) == ["saved"]
        assert verdicts(await archive.save([letter(3, 4)])) == ["saved"]
        assert not waiting.done()
    assert verdicts(await waiting) == ["saved"]


async def test_waiting_messages_are_written_in_the_order_of_conversation_and_sender(
    archive: PostgresArchive, url: str
) -> None:
    await archive.save([letter(1, 2), letter(1, 3), letter(4, 5)])
    held, theirs, behind = letter(1, 2), letter(2, 1), letter(1, 3)
    async with frozen(url, HOLD):
        tasks = [asked(archive, row) for row in (held, theirs, behind)]
        await archive.save([letter(4, 5)])
        assert not any(task.done() for task in tasks)
        assert len(await archive.history(1, 3, limit=9)) == 1, "it comes after what its sender said before"
    assert [verdicts(await task) for task in tasks] == [["saved"]] * 3
    assert ids(await archive.history(1, 2, limit=2)) == [theirs.id, held.id]
    assert ids(await archive.history(1, 3, limit=1)) == [behind.id]


async def test_a_message_said_twice_meanwhile_is_one_row(archive: PostgresArchive, url: str) -> None:
    await archive.save([letter(1, 2)])
    row = letter(1, 2, client="again")
    async with frozen(url, HOLD):
        first, second = asked(archive, row), asked(archive, letter(1, 2, client="again"))
        with_another_body = asked(archive, letter(1, 2, "other", client="again"))
    told = [(await task)[0] for task in (first, second, with_another_body)]
    assert verdicts(told) == ["saved", "exists", "exists"]
    assert {outcome.message.id for outcome in told} == {row.id}
    assert await ask(url, "SELECT count(*) FROM message") == [(2,)]
