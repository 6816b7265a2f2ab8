"""Histories, conversation lists, what is undelivered, and users, on both databases."""

import asyncio

from dragoman.archive import Archive, MemberState, Receipt, Status, open_archive
from dragoman.archive.types import MAX_UNREAD
from integration.archive.letters import ids, letter


async def test_history_is_newest_first_and_paged_by_seq_or_id(archive: Archive) -> None:
    given = [letter(1 + number % 2, 2 - number % 2) for number in range(7)]
    await archive.save([*given, letter(1, 3)])
    newest_first = [row.id for row in reversed(given)]
    assert ids(await archive.history(1, 2, limit=100)) == newest_first
    assert ids(await archive.history(2, 1, limit=3)) == newest_first[:3]
    assert ids(await archive.history(1, 2, limit=3, below_seq=5)) == newest_first[3:6]
    assert ids(await archive.history(1, 2, limit=3, below_id=given[4].id)) == newest_first[3:6]
    assert await archive.history(1, 2, limit=3, below_seq=1) == []
    assert await archive.history(1, 9, limit=3) == []


async def test_history_below_an_id_goes_by_place_not_by_number(archive: Archive) -> None:
    early, late = letter(1, 2), letter(2, 1)
    await archive.save([late])
    await archive.save([early])  # accepted first, committed second: a lower id with a higher seq
    assert ids(await archive.history(1, 2, limit=5)) == [early.id, late.id]
    assert ids(await archive.history(1, 2, limit=5, below_id=early.id)) == [late.id]
    assert ids(await archive.history(1, 2, limit=5, below_id=late.id)) == []


async def test_history_below_an_id_of_elsewhere_starts_below_it(archive: Archive) -> None:
    first, elsewhere, second = letter(1, 2), letter(1, 3), letter(1, 2)
    await archive.save([first, elsewhere, second])
    assert ids(await archive.history(1, 2, limit=5, below_id=elsewhere.id)) == [first.id]
    assert ids(await archive.history(1, 2, limit=5, below_id=1)) == []


async def test_undelivered_is_paged_by_id(archive: Archive) -> None:
    given = [letter(sender, 9) for sender in (3, 1, 2, 3, 1)]
    await archive.save([*given, letter(9, 1)])
    await archive.receipts([Receipt(9, Status.DELIVERED, (given[1].id,))])
    assert ids(await archive.undelivered(9, limit=2)) == [given[0].id, given[2].id]
    assert ids(await archive.undelivered(9, after=given[2].id)) == [given[3].id, given[4].id]
    assert await archive.undelivered(9, after=given[4].id) == []


async def test_which_users_have_something_undelivered(archive: Archive) -> None:
    outcomes = await archive.save([letter(1, user) for user in range(10, 20)])
    message = outcomes[3].message
    await archive.receipts([Receipt(message.to_user, Status.READ, (message.id,))])
    asked = [*range(5000), 11, 2**70]
    assert await archive.undelivered_users(asked, message.saved_ms + 1) == {10, 11, 12, 14, 15, 16, 17, 18, 19}
    assert await archive.undelivered_users(asked, message.saved_ms) == set()
    assert await archive.undelivered_users([], message.saved_ms) == set()


async def test_conversations_are_listed_by_last_change(archive: Archive) -> None:
    for peer in (2, 3, 4, 5):
        await archive.save([letter(1, peer)])
    await archive.save([letter(3, 1)])
    everything = await archive.conversations(1, limit=10)
    assert sorted(conversation.peer for conversation in everything) == [2, 3, 4, 5]
    order = [(conversation.updated_ms, conversation.id) for conversation in everything]
    assert order == sorted(order, reverse=True)
    paged = []
    before = None
    while page := await archive.conversations(1, limit=3, before=before):
        paged += page
        before = (page[-1].updated_ms, page[-1].id)
    assert paged == everything
    assert await archive.conversations(77, limit=3) == []


async def test_a_conversation_tells_its_last_message_and_what_is_unread(archive: Archive) -> None:
    outcomes = await archive.save([letter(1, 2), letter(1, 2), letter(2, 1), letter(1, 2)])
    messages = [outcome.message for outcome in outcomes]
    [conversation] = await archive.conversations(2, limit=5)
    assert (conversation.peer, conversation.unread, conversation.last) == (1, 3, messages[3])
    await archive.receipts([Receipt(2, Status.DELIVERED, (messages[0].id, messages[1].id))])
    await archive.receipts([Receipt(2, Status.READ, (messages[1].id,))])
    [mine] = await archive.conversations(2, limit=5)
    [theirs] = await archive.conversations(1, limit=5)
    assert (mine.unread, mine.my_read_seq, mine.peer_read_seq) == (1, 3, 0)
    assert (theirs.unread, theirs.my_read_seq, theirs.peer_read_seq) == (1, 0, 3)
    assert await archive.member_state(2, 1) == MemberState(mine.id, 3, 0)
    assert await archive.member_state(1, 2) == MemberState(mine.id, 0, 3)
    assert await archive.member_state(1, 5) is None


async def test_unread_is_counted_among_the_newest_messages_only(archive: Archive) -> None:
    for _ in range(3):
        await archive.save([letter(1, 2) for _ in range(MAX_UNREAD // 2)])
    [theirs] = await archive.conversations(2, limit=5)
    assert theirs.unread == MAX_UNREAD
    await archive.save([letter(2, 1) for _ in range(MAX_UNREAD // 2)])
    [mine], [theirs] = [await archive.conversations(user, limit=5) for user in (1, 2)]
    assert (mine.unread, theirs.unread) == (MAX_UNREAD // 2, MAX_UNREAD // 2)


async def test_one_of_two_concurrent_user_creations_succeeds(archive: Archive, sql_url: str) -> None:
    other = open_archive(sql_url)
    try:
        made = await asyncio.gather(
            *((archive, other)[number % 2].create_user("alice", f"hash {number}") for number in range(8))
        )
    finally:
        await other.close()
    assert len(set(made)) == 1
    assert await archive.user_by_name("alice") == made[0]
    bob = await archive.create_user("Böb", "x")
    assert bob.id != made[0].id
    assert await archive.user_by_name("Alice") is None


async def test_a_password_is_replaced_and_an_unknown_user_has_none(archive: Archive) -> None:
    alice = await archive.create_user("alice", "old hash")
    assert await archive.set_password(alice.id, "new hash")
    found = await archive.user_by_name("alice")
    assert found is not None
    assert found.password_hash == "new hash"
    assert not await archive.set_password(alice.id + 1000, "new hash")
    assert not await archive.set_password(2**80, "new hash")


async def test_the_name_of_a_removed_user_is_free_and_its_id_is_not(archive: Archive) -> None:
    bob, alice = await archive.create_user("bob", "hash"), await archive.create_user("alice", "hash")
    assert await archive.remove_user(alice.id)
    assert await archive.user_by_name("alice") is None
    assert not await archive.remove_user(alice.id)
    assert not await archive.set_password(alice.id, "new hash")
    assert not await archive.remove_user(2**80)
    again = await archive.create_user("alice", "another hash")
    assert again.id not in (alice.id, bob.id)
    assert await archive.remove_user(again.id)


async def test_impossible_id_is_not_found(archive: Archive) -> None:
    assert await archive.user_by_name("a\0b") is None
    assert await archive.find(1, "a\0b") is None
    assert await archive.find(2**80, "a") is None
    assert await archive.messages([2**80]) == {}
