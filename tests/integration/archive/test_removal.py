"""Translations, messages that are too old, and messages of an erased user, on both databases."""

import asyncio

from dragoman.archive import ERASED, Archive, NewMessage, Receipt, Removed, Status
from integration.archive.letters import ids, letter
from support.databases import ask

FAR = 2**63 - 1


async def saved(archive: Archive, *rows: NewMessage) -> list[int]:
    await archive.save(rows)
    return [row.id for row in rows]


async def translated(archive: Archive, id: int, lang: str = "es", body: str = "hola") -> bool:
    return await archive.add_translation(id, lang, body, "node-1")


# -- translations ----------------------------------------------------------------------------------


async def test_language_of_a_message_is_stored(archive: Archive) -> None:
    row = NewMessage(1, "c-1", 1, 2, "TEXT", "Moin", 1, "de")
    await archive.save([row, letter(1, 2)])
    assert [found.lang for found in await archive.history(1, 2, limit=5)] == ["", "de"]
    assert [found.lang for found in await archive.undelivered(2)] == ["de", ""]
    [again] = await archive.save([row])
    assert again.message.lang == "de"


async def test_first_translation_into_a_language_stays(archive: Archive) -> None:
    one, other = await saved(archive, letter(1, 2), letter(1, 2))
    assert await translated(archive, one)
    assert not await translated(archive, one, body="buenas")
    assert await translated(archive, one, "fr", "salut")
    assert await archive.translations([one, other, 2**70], "es") == {one: "hola"}
    assert await archive.translations([one], "fr") == {one: "salut"}
    assert await archive.translations([one], "x\0") == {}
    assert await archive.translations([], "es") == {}


async def test_message_that_is_not_there_gets_no_translation(archive: Archive) -> None:
    assert not await translated(archive, 7)
    assert not await translated(archive, 2**70)
    assert await archive.translations([7], "es") == {}


# -- messages that are too old ---------------------------------------------------------------------


async def test_old_messages_are_deleted_in_batches_with_their_translations(archive: Archive, sql_url: str) -> None:
    given = await saved(archive, *(letter(1, 2) for _ in range(5)))
    await translated(archive, given[0])
    await translated(archive, given[4])
    await archive.receipts([Receipt(2, Status.READ, (given[1],))])
    assert await archive.expire(given[4], FAR, 3) == Removed(3, 1, undelivered=2)
    assert await archive.expire(given[4], FAR, 3) == Removed(1, 0, undelivered=1)
    assert await archive.expire(given[4], FAR, 3) == Removed()
    assert ids(await archive.history(1, 2, limit=9)) == [given[4]]
    assert await ask(sql_url, "SELECT message_id FROM message_translation") == [(given[4],)]


async def test_message_that_was_saved_late_is_not_deleted_by_its_old_id(archive: Archive) -> None:
    [old] = await saved(archive, letter(1, 2))
    assert await archive.expire(FAR, (await archive.messages([old]))[old].saved_ms, 10) == Removed()
    assert ids(await archive.history(1, 2, limit=9)) == [old]


async def test_conversation_goes_on_after_its_messages_are_deleted(archive: Archive) -> None:
    first, second = await saved(archive, letter(1, 2), letter(1, 2))
    assert (await archive.expire(FAR, FAR, 10)).messages == 2
    [conversation] = await archive.conversations(2, limit=5)
    assert (conversation.peer, conversation.unread, conversation.last) == (1, 0, None)
    [applied] = await archive.receipts([Receipt(2, Status.READ, (first, second))])
    assert list(applied.missing) == [first, second]
    [later] = await archive.save([letter(1, 2)])
    assert later.message.seq == 3
    await archive.receipts([Receipt(2, Status.READ, (later.message.id,))])
    state = await archive.member_state(2, 1)
    assert state is not None
    assert state.my_read_seq == 3
    assert await archive.history(1, 2, limit=9, below_id=second) == []


async def test_messages_are_saved_and_confirmed_while_old_ones_are_deleted(archive: Archive) -> None:
    old = await saved(archive, *(letter(1, 2) for _ in range(60)))
    new = [letter(1 + n % 2, 2 - n % 2) for n in range(30)]

    async def expire() -> int:
        deleted = 0
        while deleted < len(old):
            deleted += (await archive.expire(new[0].id, FAR, 4)).messages
        return deleted

    async def confirm() -> None:
        for id in reversed(old):
            await archive.receipts([Receipt(2, Status.READ, (id,))])

    saving = [archive.save([row]) for row in new]
    deleted, *_ = await asyncio.gather(expire(), confirm(), *saving)
    assert deleted == len(old)
    assert sorted(ids(await archive.history(1, 2, limit=99))) == sorted(row.id for row in new)


# -- messages of an erased user --------------------------------------------------------------------


async def test_messages_of_an_erased_sender_become_tombstones(archive: Archive, sql_url: str) -> None:
    mine = await saved(archive, *(letter(1, peer, "secret") for peer in (2, 2, 3)))
    theirs = await saved(archive, letter(2, 1, "to the erased user"))
    for id in (*mine, *theirs):
        await translated(archive, id, body="secreto" if id in mine else "al usuario")
    await archive.receipts([Receipt(2, Status.DELIVERED, (mine[0],))])
    first = await archive.erase(1, "", 2)
    assert (first.messages, first.translations, first.undelivered) == (2, 2, 1)
    rest = await archive.erase(1, first.keys[-1], 2)
    assert (rest.messages, rest.translations, rest.undelivered) == (1, 1, 1)
    assert {*first.keys, *rest.keys} == {f"c-{id}" for id in mine}
    assert await archive.erase(1, "", 9) == Removed()
    assert await ask(sql_url, "SELECT count(*) FROM message WHERE body = 'secret'") == [(0,)]
    assert await ask(sql_url, "SELECT message_id, body FROM message_translation") == [(theirs[0], "al usuario")]
    tombstone = (await archive.messages(mine))[mine[1]]
    assert (tombstone.body, tombstone.msg_type, tombstone.seq, tombstone.status) == ("", ERASED, 2, Status.SAVED)
    assert not await translated(archive, mine[0])
    assert (await archive.messages(theirs))[theirs[0]].body == "to the erased user"


async def test_message_that_is_sent_again_after_the_erasure_stays_a_tombstone(archive: Archive) -> None:
    row = letter(1, 2, "secret")
    await archive.save([row])
    await archive.erase(1, "", 10)
    [again] = await archive.save([row])
    assert (again.message.body, again.message.msg_type) == ("", ERASED)


async def test_no_translation_of_an_erased_message_stays_whatever_comes_first(archive: Archive, sql_url: str) -> None:
    mine = await saved(archive, *(letter(1, 2, "secret") for _ in range(20)))
    await asyncio.gather(*(translated(archive, id) for id in mine), archive.erase(1, "", 100))
    while (await archive.erase(1, "", 100)).messages:  # those that a translation had locked
        pass
    assert await ask(sql_url, "SELECT count(*) FROM message_translation") == [(0,)]
    assert await ask(sql_url, "SELECT DISTINCT body FROM message") == [("",)]
