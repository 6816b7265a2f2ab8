"""Second chances and last rites: what fails is tried again, and what fails too often becomes a dead letter."""

import asyncio

from dragoman.instance.services import Stores
from dragoman.protocol.peer import InboxMessage
from dragoman.store.errors import RedisAway
from dragoman.store.inbox import InboxSettings
from integration.services.members import Join, Member, jobs, said
from support.waiting import wait_until

REFUSAL = RedisAway("not yet")  # not logged as a bug


async def test_failed_entry_is_retried_and_done(join: Join, stores: Stores) -> None:
    member = await join("a")
    await member.push(said("j"))
    member.failing = REFUSAL
    await member.reader.run_once()
    member.failing = None
    await member.reclaimer.run_once()
    assert jobs(member.handled) == ["j"]
    assert (await stores.inboxes.counts("a")).done == 1


async def test_reclaimer_leaves_entries_that_are_pending_for_less_than_the_idle_time(
    join: Join, stores: Stores
) -> None:
    member = await join("a")
    member.reclaimer.min_idle_ms = 60_000
    await member.push(said("j"))
    member.failing = REFUSAL
    await member.reader.run_once()
    member.failing = None
    await member.reclaimer.run_once()
    assert member.handled == []
    assert [pending.deliveries for pending in await stores.inboxes.pending("a", 0, 10)] == [1]


async def test_entry_that_keeps_failing_becomes_a_dead_letter_with_its_reason(join: Join, stores: Stores) -> None:
    """Although the reclaimer runs all the while: it looks for the hopeless before it claims, which sets idle to 0."""
    member = await join("a")
    member.reclaimer.min_idle_ms = 5
    await member.push(said("hopeless"))
    member.failing = REFUSAL
    await member.reader.run_once()
    await wait_until(lambda: _a_letter(member))
    [letter] = await stores.letters.list("a")
    assert (letter.kind, letter.reason, letter.trace_id) == ("from_node", "RedisAway: not yet", "trace")
    assert letter.deliveries >= member.reclaimer.max_deliveries + 1
    assert member.reader.reasons == {}
    assert member.count("scheduler_phase2_dlq_moved_total") == 1
    assert await member.balanced()


async def test_a_hopeless_entry_behind_many_others_is_found(join: Join, stores: Stores) -> None:
    member = await join("a")
    member.reclaimer.count = 2
    for number in range(5):
        await member.push_raw("v", "2", "type", "from_node", "size", "2", "data", f"{number}")
    await member.push(said("hopeless"))
    member.failing = REFUSAL
    await member.reader.run_once()
    for _ in range(4):
        await member.reclaimer.run_once()
    assert [letter.kind for letter in await stores.letters.list("a")] == ["from_node"]


async def test_entries_of_a_later_release_are_never_dead_letters(join: Join, stores: Stores) -> None:
    member = await join("a")
    await member.push_raw("v", "2", "type", "from_node", "size", "2", "data", "{}")
    await member.reader.run_once()
    for _ in range(5):
        await member.reclaimer.run_once()
    assert await stores.letters.list("a") == []
    assert (await stores.inboxes.counts("a")).waiting == 1


async def test_with_full_dead_letters_it_stays_pending_and_is_counted(join: Join, stores: Stores) -> None:
    stores.inboxes.settings = InboxSettings(dlq_maxlen=1)
    member = await join("a")
    for name in ("first", "second"):
        await member.push(said(name))
    member.failing = REFUSAL
    await member.reader.run_once()
    for _ in range(5):
        await member.reclaimer.run_once()
    tally = await stores.inboxes.counts("a")
    assert (tally.dead, tally.waiting, tally.balanced) == (1, 1, True)
    assert member.count("dragoman_dlq_full_total") >= 1
    stores.inboxes.settings = InboxSettings()
    await member.reclaimer.run_once()
    assert [letter.reason for letter in await stores.letters.list("a")] == ["RedisAway: not yet"] * 2


async def test_inbox_pending_counts_what_is_pending_and_what_is_unread(join: Join, stores: Stores) -> None:
    member = await join("a")
    member.failing = REFUSAL
    await member.push(said("pending"))
    await member.reader.run_once()
    member.reader.in_hand.update(entry.id for entry in await stores.inboxes.pending("a", 0, 10))
    for job in ("unread", "unread too"):
        await member.push(said(job))
    await member.reclaimer.run_once()
    [family] = [one for one in member.metrics.registry.collect() if one.name == "scheduler_phase2_inbox_pending"]
    assert family.samples[0].value == 3
    assert family.documentation == "Entries in this inbox: pending (read, not done) and unread"


async def test_switched_off_it_only_tries_again(join: Join, stores: Stores) -> None:
    member = await join("a")
    stores.inboxes.settings = InboxSettings(dead_letters=False)
    await member.push(said("j"))
    member.failing = REFUSAL
    await member.reader.run_once()
    for _ in range(5):
        await member.reclaimer.run_once()
    assert (await stores.inboxes.counts("a")).waiting == 1
    member.failing = None
    await member.reclaimer.run_once()
    assert jobs(member.handled) == ["j"]


async def test_reclaimer_does_not_repeat_entries_that_the_reader_handles(join: Join, stores: Stores) -> None:
    """A slow handler makes those behind it look forgotten."""
    member = await join("a")
    for name in ("slow", "next"):
        await member.push(said(name))
    handle, go_on = member.reader._handle, asyncio.Event()

    async def slowly(message: InboxMessage) -> None:
        if jobs([message]) == ["slow"]:
            await go_on.wait()
        await handle(message)

    member.reader._handle = slowly
    reading = asyncio.create_task(member.reader.run_once())
    await wait_until(lambda: member.reader.in_hand)
    for _ in range(5):
        await member.reclaimer.run_once()
    go_on.set()
    await reading
    assert jobs(member.handled) == ["slow", "next"]
    assert await stores.letters.list("a") == []
    assert (await stores.inboxes.counts("a")).done == 2


async def _a_letter(member: Member) -> bool:
    await member.reclaimer.run_once()
    return bool(await member.stores.letters.list(member.name))
