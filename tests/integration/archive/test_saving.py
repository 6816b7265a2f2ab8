"""What `save` promises, on both databases."""

import asyncio
from time import monotonic

import asyncpg  # type: ignore[import-untyped]
import pytest

from dragoman.archive import Archive, BadRow, Fenced, NewMessage, Status, open_archive
from dragoman.archive.postgres import PostgresArchive
from dragoman.tools.postgres import PostgresServer
from integration.archive.letters import CREATED_MS, letter, verdicts
from support.databases import ask


async def test_a_saved_message_is_read_as_it_was_given(archive: Archive) -> None:
    given = letter(1, 2, "Grüße, 世界 🙂\n\t'\"\\")
    [outcome] = await archive.save([given])
    assert verdicts([outcome]) == ["saved"]
    message = outcome.message
    assert (message.id, message.client_msg_id, message.from_user, message.to_user) == (
        given.id,
        given.client_msg_id,
        1,
        2,
    )
    assert (message.body, message.msg_type, message.created_ms) == (given.body, "TEXT", CREATED_MS)
    assert (message.seq, message.status) == (1, Status.SAVED)
    assert message.saved_ms > CREATED_MS
    assert await archive.messages([given.id, 5]) == {given.id: message}
    assert await archive.find(1, given.client_msg_id) == message
    assert await archive.find(2, given.client_msg_id) is None


async def test_both_directions_of_a_conversation_are_numbered_group_commit_in_the_given_order(archive: Archive) -> None:
    given = [letter(1, 2), letter(3, 1), letter(2, 1), letter(1, 2), letter(1, 3)]
    stored = [outcome.message for outcome in await archive.save(given)]
    assert [message.seq for message in stored] == [1, 1, 2, 3, 2]
    assert stored[0].conversation == stored[2].conversation == stored[3].conversation
    assert stored[1].conversation == stored[4].conversation != stored[0].conversation
    [following] = await archive.save([letter(2, 1)])
    assert following.message.seq == 4


async def test_saving_says_when_the_database_begins(archive: Archive) -> None:
    for rows in ([letter(1, 2)], [letter(1, 2)], [letter(1, 2), letter(3, 4)]):
        begun = list[float]()
        asked = monotonic()
        await archive.save(rows, on_begin=lambda begun=begun: begun.append(monotonic()))  # type: ignore[misc]
        assert begun
        assert all(asked <= at <= monotonic() for at in begun)


@pytest.mark.parametrize("count", [1, 2])
async def test_postgres_begins_with_a_message_when_a_connection_of_the_pool_is_free(
    postgres_server: PostgresServer, count: int
) -> None:
    url = postgres_server.new_database()
    archive, locker = PostgresArchive(url, pool=1), await asyncpg.connect(url)
    try:
        await archive.save([letter(1, 2)])
        await locker.execute("BEGIN; LOCK TABLE conversation")
        reading = asyncio.create_task(archive.history(1, 2, limit=1))
        blocked = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        while not await locker.fetchval(blocked):
            pass
        begun = list[float]()
        rows = [letter(1, 2) for _ in range(count)]
        saving = asyncio.create_task(archive.save(rows, on_begin=lambda: begun.append(monotonic())))
        await locker.fetchval("SELECT 1")  # a round trip: the save has long asked for its connection
        unlocked = monotonic()
        await locker.execute("COMMIT")
        await asyncio.gather(reading, saving)
        assert begun
        assert begun[0] >= unlocked
    finally:
        await locker.close()
        await archive.close()


async def test_a_message_saved_twice_is_one_row(archive: Archive) -> None:
    given = letter(1, 2)
    [first] = await archive.save([given])
    [again] = await archive.save([given])
    assert verdicts([again]) == ["exists"]
    assert again.message == first.message


async def test_a_repeated_client_id_under_another_number_meets_the_row_that_is_there(archive: Archive) -> None:
    first = letter(1, 2, client="mine")
    await archive.save([first])
    outcomes = await archive.save([letter(1, 2, client="mine"), letter(3, 2, client="mine")])
    assert verdicts(outcomes) == ["exists", "saved"]
    assert outcomes[0].message.id == first.id
    assert await archive.messages([outcomes[1].message.id]) != {}


@pytest.mark.parametrize(
    ("receiver", "body", "verdict"), [(2, "other", "exists"), (3, "hello", "mismatch"), (3, "other", "mismatch")]
)
async def test_a_repeated_client_id_finds_the_first_message_and_is_a_mismatch_for_another_receiver(
    archive: Archive, receiver: int, body: str, verdict: str
) -> None:
    first = letter(1, 2, client="mine")
    await archive.save([first])
    [outcome] = await archive.save([letter(1, receiver, body, client="mine")])
    assert verdicts([outcome]) == [verdict]
    assert (outcome.message.id, outcome.message.body, outcome.message.to_user) == (first.id, "hello", 2)


async def test_a_number_that_is_taken_by_another_message_is_a_mismatch(archive: Archive) -> None:
    first = letter(1, 2)
    await archive.save([first])
    [outcome] = await archive.save([letter(5, 6, client="other", number=first.id)])
    assert verdicts([outcome]) == ["mismatch"]
    assert outcome.message.from_user == 1


async def test_within_one_batch_the_first_of_a_client_id_wins(archive: Archive) -> None:
    first = letter(1, 2, client="mine")
    outcomes = await archive.save(
        [first, first, letter(1, 2, client="mine"), letter(1, 2, "x", client="mine"), letter(1, 3, client="mine")]
    )
    assert verdicts(outcomes) == ["saved", "exists", "exists", "exists", "mismatch"]
    assert {outcome.message.id for outcome in outcomes} == {first.id}
    [following] = await archive.save([letter(1, 2)])
    assert following.message.seq == 2


async def test_new_messages_in_a_batch_of_old_ones_get_the_next_numbers(archive: Archive) -> None:
    old = [letter(1, 2) for _ in range(3)]
    await archive.save(old)
    mixed = [old[0], letter(1, 2), old[2], letter(2, 1)]
    outcomes = await archive.save(mixed)
    assert verdicts(outcomes) == ["exists", "saved", "exists", "saved"]
    assert [outcome.message.seq for outcome in outcomes] == [1, 4, 3, 5]


async def test_a_batch_of_hundreds_over_many_conversations_is_saved_in_order(archive: Archive) -> None:
    given = [letter(number % 7, 100 + number % 13) for number in range(600)]
    outcomes = await archive.save(given)
    assert [outcome.message.id for outcome in outcomes] == [row.id for row in given]
    by_conversation: dict[int, list[int]] = {}
    for outcome in outcomes:
        by_conversation.setdefault(outcome.message.conversation, []).append(outcome.message.seq)
    assert all(seqs == list(range(1, len(seqs) + 1)) for seqs in by_conversation.values())
    assert len(by_conversation) == 7 * 13


async def test_nothing_to_save_is_no_transaction(archive: Archive) -> None:
    assert await archive.save([]) == []


# -- fences --------------------------------------------------------------------------------------


async def test_a_writer_with_an_old_fence_writes_nothing(archive: Archive, sql_url: str) -> None:
    await archive.save([letter(1, 2)], shard=3, fence=7)
    with pytest.raises(Fenced, match="Shard 3"):
        await archive.save([letter(1, 2), letter(8, 9)], shard=3, fence=6)
    assert await archive.fence(3) == 7
    assert await ask(sql_url, "SELECT count(*) FROM message") == [(1,)]
    assert await ask(sql_url, "SELECT count(*) FROM conversation") == [(1,)]


async def test_the_same_and_a_higher_fence_write(archive: Archive) -> None:
    for fence in (2, 2, 5):
        assert verdicts(await archive.save([letter(1, 2)], shard=0, fence=fence)) == ["saved"]
        assert await archive.fence(0) == fence


async def test_an_empty_batch_raises_the_fence(archive: Archive) -> None:
    assert await archive.fence(1) == 0
    assert await archive.save([], shard=1, fence=4) == []
    assert await archive.fence(1) == 4
    with pytest.raises(Fenced):
        await archive.save([], shard=1, fence=3)


async def test_shards_have_fences_of_their_own(archive: Archive) -> None:
    await archive.save([letter(1, 2)], shard=1, fence=9)
    assert verdicts(await archive.save([letter(1, 2)], shard=2, fence=1)) == ["saved"]


# -- what can never be written -------------------------------------------------------------------

BAD = {
    "a zero byte in the body": letter(1, 2, "a\0b"),
    "a zero byte in the client id": letter(1, 2, client="a\0b"),
    "half a surrogate pair": letter(1, 2, "\ud83d"),
    "a number of 64 bits": letter(1, 2, number=2**63),
    "a user of 64 bits": letter(1, 2**63),
    "a message to oneself": letter(4, 4),
    "a client id of a thousand characters": letter(1, 2, client="ü" * 1000),
}


@pytest.mark.parametrize("row", BAD.values(), ids=BAD.keys())
async def test_a_bad_row_is_refused_with_its_whole_batch(archive: Archive, sql_url: str, row: NewMessage) -> None:
    with pytest.raises(BadRow):
        await archive.save([letter(1, 2), row, letter(1, 2)])
    assert await ask(sql_url, "SELECT count(*) FROM message") == [(0,)]
    assert verdicts(await archive.save([letter(1, 2)])) == ["saved"]


async def test_one_number_for_two_messages_of_a_batch_is_refused(archive: Archive) -> None:
    first = letter(1, 2)
    with pytest.raises(BadRow, match="two messages"):
        await archive.save([first, letter(1, 2, client="other", number=first.id)])


# -- several at once -----------------------------------------------------------------------------


async def test_calls_at_once_leave_no_gap_and_no_double(archive: Archive) -> None:
    batches = [[letter(1 + number % 2, 2 - number % 2) for _ in range(3)] for number in range(40)]
    saved = await asyncio.gather(*(archive.save(batch) for batch in batches))
    seqs = sorted(outcome.message.seq for outcomes in saved for outcome in outcomes)
    assert seqs == list(range(1, 121))
    for outcomes in saved:
        within = [outcome.message.seq for outcome in outcomes]
        assert within == sorted(within)


async def test_of_the_same_message_saved_at_once_one_is_new(archive: Archive, sql_url: str) -> None:
    other = open_archive(sql_url)
    try:
        for round_ in range(10):
            given = [letter(1, receiver, client=f"same-{round_}") for receiver in (2, 2, 3, 4)]
            told = await asyncio.gather(*((archive, other)[n % 2].save([row]) for n, row in enumerate(given)))
            found = sorted(verdict for outcomes in told for verdict in verdicts(outcomes))
            assert found.count("saved") == 1, found
            assert len({outcomes[0].message.id for outcomes in told}) == 1
    finally:
        await other.close()
    assert await ask(sql_url, "SELECT count(*) FROM message") == [(10,)]
