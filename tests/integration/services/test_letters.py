"""Dead letters for people: listed, shown, sent again, thrown away."""

import pytest

from dragoman.instance.services import Stores
from dragoman.protocol.peer import encode_peer
from dragoman.store.dead_letters import DeadLetter
from dragoman.store.inbox import InboxSettings, PushReply
from integration.services.members import Join, Member, jobs, said


async def dead_letter(member: Member, job: str = "j", reason: str = "it had to be") -> DeadLetter:
    """One letter of this member, by the way all of them take."""
    stores = member.stores
    await member.push(said(job))
    [*_, entry] = await stores.inboxes.unread(member.name, 100)
    assert await stores.inboxes.dead_letter(member.name, entry.id, reason, 6) == "OK"
    return (await stores.letters.list(member.name, 10_000))[-1]


async def test_letters_are_listed_oldest_first_and_without_what_they_carry(join: Join, stores: Stores) -> None:
    member = await join("a")
    for number in range(3):
        await dead_letter(member, f"j{number}", f"reason {number}")
    letters = await stores.letters.list("a")
    assert [letter.reason for letter in letters] == ["reason 0", "reason 1", "reason 2"]
    assert {letter.data for letter in letters} == {b""}
    assert {(letter.kind, letter.deliveries, letter.trace_id) for letter in letters} == {("from_node", 6, "trace")}
    assert letters[0].size == len(encode_peer(said("j0")))


async def test_a_list_goes_on_after_a_letter(join: Join, stores: Stores) -> None:
    member = await join("a")
    for number in range(5):
        await dead_letter(member, reason=str(number))
    first = await stores.letters.list("a", 2)
    rest = await stores.letters.list("a", 10, after=first[-1].id)
    assert [letter.reason for letter in (*first, *rest)] == ["0", "1", "2", "3", "4"]


async def test_more_letters_than_a_page_are_listed(join: Join, stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.store.dead_letters.PAGE", 2)
    member = await join("a")
    for number in range(5):
        await dead_letter(member, reason=str(number))
    assert [letter.reason for letter in await stores.letters.list("a", 4)] == ["0", "1", "2", "3"]
    assert len(await stores.letters.list("a")) == 5


async def test_one_letter_is_shown_whole(join: Join, stores: Stores) -> None:
    member = await join("a")
    listed = await dead_letter(member)
    found = await stores.letters.get("a", listed.id)
    assert found is not None
    assert found.data == encode_peer(said("j"))
    assert await stores.letters.get("a", "1-1") is None
    assert await stores.letters.get("nobody", listed.id) is None


async def test_letters_are_counted_also_of_the_dead(join: Join, stores: Stores) -> None:
    a, b = await join("a"), await join("b")
    await dead_letter(a)
    await dead_letter(a)
    await dead_letter(b)
    await a.die()
    await b.takeover.run_once()
    assert await stores.letters.counts() == {"a": 2, "b": 1}


async def test_an_instance_that_is_named_without_letters_is_not_named_for_long(join: Join, stores: Stores) -> None:
    """The index is written before the letter, which may then be refused."""
    member = await join("a")
    assert await stores.inboxes.dead_letter("a", "1-1", "no such entry", 1) == "NONE"
    assert await stores.letters.instances() == ["a"]
    assert await stores.letters.counts() == {}
    assert await stores.letters.instances() == []
    await dead_letter(member)
    assert await stores.letters.counts() == {"a": 1}


async def test_a_replay_goes_to_its_instance_and_is_handled_there(join: Join, stores: Stores) -> None:
    member, other = await join("a"), await join("b")
    letter = await dead_letter(member)
    assert await stores.letters.replay(await _whole(stores, letter), "b") is PushReply.OK
    for each in (member, other):
        await each.reader.run_once()
    assert (jobs(member.handled), jobs(other.handled)) == (["j"], [])
    assert await stores.letters.counts() == {}
    assert await member.balanced()


async def test_a_replay_for_the_dead_goes_to_a_living_instance(join: Join, stores: Stores) -> None:
    dead, heir = await join("dead"), await join("heir")
    letter = await dead_letter(dead)
    await dead.die()
    await heir.takeover.run_once()
    assert await stores.letters.replay(await _whole(stores, letter), "heir") is PushReply.OK
    await heir.reader.run_once()
    assert jobs(heir.handled) == ["j"]


async def test_dead_letter_is_kept_when_its_replay_is_not_accepted(join: Join, stores: Stores) -> None:
    member = await join("a")
    letter = await _whole(stores, await dead_letter(member))
    stores.inboxes.settings = InboxSettings(maxlen=0)
    assert await stores.letters.replay(letter, "a") is PushReply.FULL
    stores.inboxes.settings = InboxSettings()
    await member.presence.close()
    assert await stores.letters.replay(letter, "a") is PushReply.GONE
    assert await stores.letters.counts() == {"a": 1}


async def test_a_dropped_letter_is_gone_and_so_is_the_last_ones_name(join: Join, stores: Stores) -> None:
    member = await join("a")
    first, second = await dead_letter(member), await dead_letter(member)
    assert await stores.letters.drop("a", first.id)
    assert await stores.letters.instances() == ["a"]
    assert await stores.letters.drop("a", second.id)
    assert await stores.letters.instances() == []
    assert not await stores.letters.drop("a", second.id)


async def test_a_letter_with_strange_fields_can_still_be_read(stores: Stores) -> None:
    key = stores.keys.dlq("a")
    await stores.redis.call("XADD", key, "*", "size", "²", "type", b"\xff\xfe", "reason", "", "deliveries", "-3")
    await stores.redis.call("SADD", stores.keys.dlq_instances, "a")
    [letter] = await stores.letters.list("a")
    assert (letter.size, letter.kind, letter.deliveries) == (0, "\ufffd\ufffd", 0)


async def _whole(stores: Stores, letter: DeadLetter) -> DeadLetter:
    found = await stores.letters.get(letter.instance, letter.id)
    assert found is not None
    return found
