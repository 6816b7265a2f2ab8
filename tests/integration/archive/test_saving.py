"""What saving and receipts promise, on both databases."""

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path
from time import monotonic
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import pytest

from dragoman.archive import Archive, BadRow, Fenced, NewMessage, Receipt, Status, Stored, open_archive
from dragoman.archive.postgres import PostgresArchive
from dragoman.tools.postgres import PostgresServer
from integration.archive.letters import CREATED_MS, ids, letter, verdicts
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


DELIVERED, READ = Status.DELIVERED, Status.READ


async def saved(archive: Archive, *rows: NewMessage) -> list[Stored]:
    return [outcome.message for outcome in await archive.save(rows)]


async def cursors(url: str, user: int) -> tuple[int, int]:
    [(delivered, read)] = await ask(url, f"SELECT delivered_seq, read_seq FROM member WHERE user_id = {user}")
    return delivered, read


async def statuses(archive: Archive, messages: list[Stored]) -> list[int]:
    now = await archive.messages([message.id for message in messages])
    return [int(now[message.id].status) for message in messages]


async def test_receipt_of_an_unknown_id_is_missing(archive: Archive) -> None:
    [message] = await saved(archive, letter(1, 2))
    [applied] = await archive.receipts([Receipt(2, READ, (5, 2**70, -(2**70), message.id))])
    assert applied.missing == [5, 2**70, -(2**70)]
    assert [changed.id for changed in applied.changed] == [message.id]


async def test_hundreds_of_receipts_are_one_call(archive: Archive) -> None:
    messages = await saved(archive, *(letter(number % 5, 100 + number % 40) for number in range(500)))
    told = await archive.receipts([Receipt(message.to_user, DELIVERED, (message.id,)) for message in messages])
    assert [applied.changed[0].id for applied in told] == [message.id for message in messages]
    assert set(await statuses(archive, messages)) == {1}


async def test_receipts_and_messages_at_once_lose_nothing(archive: Archive, sql_url: str) -> None:
    messages = await saved(archive, *(letter(1, 2) for _ in range(60)))

    async def acknowledge(message: Stored) -> None:
        await archive.receipts([Receipt(2, READ if message.seq % 3 == 0 else DELIVERED, (message.id,))])

    await asyncio.gather(
        *(acknowledge(message) for message in reversed(messages)), *(archive.save([letter(1, 2)]) for _ in range(20))
    )
    newest = await archive.history(1, 2, limit=20)
    assert ids(await archive.undelivered(2, limit=1000)) == sorted(ids(newest))
    await archive.receipts([Receipt(2, READ, (messages[-1].id,))])
    assert await cursors(sql_url, 2) == (60, 60)


async def test_no_receipts_are_no_work(archive: Archive) -> None:
    assert await archive.receipts([]) == []


PROGRAM = Path(__file__).with_name("writing_process.py")
MESSAGES, SHARED = 900, 60


async def write(url: str, name: int) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, PROGRAM, url, str(name), str(MESSAGES), str(SHARED), stdout=asyncio.subprocess.PIPE
    )
    try:
        printed, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0
    told: dict[str, Any] = json.loads(printed)
    return told


async def test_processes_that_write_the_same_conversations_leave_no_gap_no_double_and_every_sender_in_order(
    sql_url: str,
) -> None:
    told = await asyncio.gather(*(write(sql_url, name) for name in (1, 2, 3)))

    rows = await ask(sql_url, "SELECT conversation_id, msg_seq, from_user_id, id FROM message ORDER BY 1, 2")
    assert len(rows) == 3 * MESSAGES + SHARED
    seqs: dict[int, list[int]] = {}
    senders: dict[tuple[int, int], list[int]] = {}
    for conversation, seq, sender, number in rows:
        seqs.setdefault(conversation, []).append(seq)
        if sender >= 100:
            senders.setdefault((conversation, sender), []).append(number)
    assert all(found == list(range(1, len(found) + 1)) for found in seqs.values())
    assert all(numbers == sorted(numbers) for numbers in senders.values())

    following = await ask(sql_url, "SELECT id, next_msg_seq FROM conversation ORDER BY 1")
    assert following == [(conversation, len(found) + 1) for conversation, found in sorted(seqs.items())]
    members = await ask(sql_url, "SELECT conversation_id, count(*) FROM member GROUP BY 1")
    assert {count for _, count in members} == {2}

    common = Counter(
        verdict for verdicts in told for client, verdict in verdicts.items() if client.startswith("common")
    )
    assert common == {"saved": SHARED, "exists": 2 * SHARED}
