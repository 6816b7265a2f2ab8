"""What receipts raise, and where the cursors stand after them, on both databases."""

import asyncio

from dragoman.archive import Archive, NewMessage, Receipt, Status, Stored
from integration.archive.letters import ids, letter
from support.databases import ask

DELIVERED, READ = Status.DELIVERED, Status.READ


async def saved(archive: Archive, *rows: NewMessage) -> list[Stored]:
    return [outcome.message for outcome in await archive.save(rows)]


async def cursors(url: str, user: int) -> tuple[int, int]:
    [(delivered, read)] = await ask(url, f"SELECT delivered_seq, read_seq FROM member WHERE user_id = {user}")
    return delivered, read


async def statuses(archive: Archive, messages: list[Stored]) -> list[int]:
    now = await archive.messages([message.id for message in messages])
    return [int(now[message.id].status) for message in messages]


async def test_delivered_raises_the_message_and_the_cursor(archive: Archive, sql_url: str) -> None:
    messages = await saved(archive, *(letter(1, 2) for _ in range(3)))
    [applied] = await archive.receipts([Receipt(2, DELIVERED, (messages[0].id, messages[1].id))])
    assert [(message.id, message.status) for message in applied.changed] == [
        (messages[0].id, DELIVERED),
        (messages[1].id, DELIVERED),
    ]
    assert (applied.missing, applied.not_allowed) == ([], [])
    assert await statuses(archive, messages) == [1, 1, 0]
    assert await cursors(sql_url, 2) == (2, 0)


async def test_a_receipt_given_twice_changes_nothing_more(archive: Archive) -> None:
    [message] = await saved(archive, letter(1, 2))
    receipt = Receipt(2, DELIVERED, (message.id, message.id))
    first, second = await archive.receipts([receipt, receipt])
    assert (len(first.changed), second.changed) == (1, [])
    [third] = await archive.receipts([receipt])
    assert third.changed == []


async def test_the_cursor_does_not_jump_over_what_was_not_delivered(archive: Archive, sql_url: str) -> None:
    messages = await saved(archive, *(letter(1, 2) for _ in range(4)))
    await archive.receipts([Receipt(2, DELIVERED, (messages[1].id, messages[3].id))])
    assert await cursors(sql_url, 2) == (0, 0)
    await archive.receipts([Receipt(2, DELIVERED, (messages[0].id,))])
    assert await cursors(sql_url, 2) == (2, 0)
    await archive.receipts([Receipt(2, DELIVERED, (messages[2].id,))])
    assert await cursors(sql_url, 2) == (4, 0)


async def test_the_cursor_passes_what_the_reader_wrote_itself(archive: Archive, sql_url: str) -> None:
    messages = await saved(archive, letter(2, 1), letter(1, 2), letter(2, 1))
    await archive.receipts([Receipt(2, READ, (messages[1].id,))])
    assert await cursors(sql_url, 2) == (3, 3)
    assert await cursors(sql_url, 1) == (0, 0)


async def test_read_takes_what_was_delivered_before_it_along(archive: Archive, sql_url: str) -> None:
    messages = await saved(archive, *(letter(1, 2) for _ in range(4)), letter(1, 3))
    await archive.receipts([Receipt(2, DELIVERED, (messages[0].id, messages[2].id, messages[3].id))])
    [applied] = await archive.receipts([Receipt(2, READ, (messages[2].id,))])
    assert [message.seq for message in applied.changed] == [1, 3]
    assert all(message.status is READ for message in applied.changed)
    assert await statuses(archive, messages) == [2, 0, 2, 1, 0]
    assert await cursors(sql_url, 2) == (1, 1)


async def test_read_implies_delivered(archive: Archive) -> None:
    [message] = await saved(archive, letter(1, 2))
    [applied] = await archive.receipts([Receipt(2, READ, (message.id,))])
    assert [changed.status for changed in applied.changed] == [READ]
    assert await archive.undelivered(2) == []
    [late] = await archive.receipts([Receipt(2, DELIVERED, (message.id,))])
    assert late.changed == []


async def test_only_the_addressee_raises_a_message(archive: Archive) -> None:
    [message] = await saved(archive, letter(1, 2))
    told = await archive.receipts([Receipt(1, DELIVERED, (message.id,)), Receipt(3, READ, (message.id,))])
    assert [list(applied.not_allowed) for applied in told] == [[message.id], [message.id]]
    assert [list(applied.changed) for applied in told] == [[], []]
    assert await statuses(archive, [message]) == [0]


async def test_receipt_of_an_unknown_id_is_missing(archive: Archive) -> None:
    [message] = await saved(archive, letter(1, 2))
    [applied] = await archive.receipts([Receipt(2, READ, (5, 2**70, -(2**70), message.id))])
    assert applied.missing == [5, 2**70, -(2**70)]
    assert [changed.id for changed in applied.changed] == [message.id]


async def test_several_receipts_do_what_they_would_have_done_one_by_one(archive: Archive) -> None:
    messages = await saved(archive, *(letter(1, 2) for _ in range(3)), letter(9, 2))
    told = await archive.receipts(
        [
            Receipt(2, READ, (messages[2].id,)),
            Receipt(2, DELIVERED, (messages[0].id, messages[3].id)),
            Receipt(2, DELIVERED, (messages[1].id,)),
            Receipt(2, READ, (messages[1].id,)),
        ]
    )
    raised = [[(message.seq, int(message.status)) for message in applied.changed] for applied in told]
    assert raised == [[(3, 2)], [(1, 1), (1, 1)], [(2, 1)], [(1, 2), (2, 2)]]
    assert await statuses(archive, messages) == [2, 2, 2, 1]


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
