"""One survivor takes over a dead instance, completely and in order; whoever lives is left alone."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
import pytest

from dragoman.domain.job import Event, Outcome
from dragoman.instance.services import Services, Stores
from dragoman.protocol.peer import AssignJob, Bounced, Evict, FromNode, InboxMessage, NodeLost
from dragoman.services.upkeep.presence import TakeoverResult
from dragoman.store.errors import RedisAway
from dragoman.store.inbox import InboxSettings, PushReply
from dragoman.store.instances import Presence
from dragoman.store.nodes import Snapshot
from dragoman.store.redis import Redis
from integration.services.members import Join, jobs, said
from support.cluster import config
from support.redis_servers import RedisAt


@pytest.fixture
def whole(runner: asyncio.Runner, stores: Stores, redis_at: RedisAt, prefix: str) -> Iterator[Services]:
    """The services of a real instance called `heir`, present; nothing of it runs by itself."""

    async def nothing() -> None: ...

    async def same() -> Redis:
        return stores.redis

    async def enter() -> Services:
        settings = config(redis_at, prefix)
        made = Services(
            settings, "heir", stores, describe=Presence, on_declared_dead=nothing, on_drain=lambda: None,
            on_switches_changed=lambda: None, on_wrong_archive=lambda: None, connect=same,
        )  # fmt: skip
        await made.presence.join(made.takeover.take_over)
        return made

    services = runner.run(enter())
    yield services
    runner.run(services.tasks.cancel())


async def test_everything_of_a_dead_instance_is_taken_over_and_its_name_goes(join: Join, stores: Stores) -> None:
    dead, heir = await join("dead"), await join("heir")
    await dead.push(said("from inbox"))
    await stores.jobs.driven("dead", "driven", 1)
    await stores.owners.claim_session("s", "dead")
    await stores.owners.claim_node("n", "dead")
    await dead.die()
    assert await heir.takeover.run_once() == ["dead"]
    assert (jobs(heir.rehomed), heir.adopted) == (["from inbox"], ["driven"])
    assert list(await stores.instances.all()) == ["heir"]
    assert await stores.owners.session_owner("s") is None
    assert await stores.owners.node_owner("n") is None
    assert await _left_of(stores, "dead") == []
    assert heir.count("dragoman_takeovers_total") == 1


async def test_the_inbox_is_handed_on_in_the_order_it_came(join: Join) -> None:
    dead, heir = await join("dead"), await join("heir")
    names = [f"j{number}" for number in range(25)]
    for name in names[:12]:
        await dead.push(said(name))
    dead.failing = RedisAway("for a moment")
    await dead.reader.run_once()  # ten were given to it and not finished
    for name in names[12:]:
        await dead.push(said(name))
    await dead.die()
    await heir.takeover.run_once()
    assert jobs(heir.rehomed) == names


async def test_of_several_survivors_exactly_one_hands_each_entry_on(join: Join) -> None:
    dead = await join("dead")
    heirs = [await join(f"heir{number}") for number in range(4)]
    names = [f"j{number}" for number in range(30)]
    for name in names:
        await dead.push(said(name))
    await dead.die()
    taken_over = await asyncio.gather(*(heir.takeover.run_once() for heir in heirs))
    assert sorted(name for each in taken_over for name in each) == ["dead"]
    assert [jobs(heir.rehomed) for heir in heirs if heir.rehomed] == [names]


async def test_takeover_waits_until_the_survivor_is_steady(join: Join, stores: Stores) -> None:
    dead, heir = await join("dead"), await join("heir")
    await dead.die()
    heir.sure = False
    assert await heir.takeover.run_once() == []
    assert await stores.instances.holder("dead") == dead.presence.incarnation


async def test_the_living_are_not_touched(join: Join, stores: Stores) -> None:
    living, heir = await join("living"), await join("heir")
    await living.push(said("j"))
    assert await heir.takeover.run_once() == []
    assert await heir.takeover.take_over("living") is TakeoverResult.NOT_OURS
    await living.presence.run_once()
    await living.reader.run_once()
    assert (living.deaths, jobs(living.handled)) == (0, ["j"])


async def test_one_whose_presence_cannot_be_read_lives(join: Join, stores: Stores) -> None:
    """A later release may write it in its own way."""
    living, heir = await join("living"), await join("heir")
    await stores.redis.call("SET", stores.keys.presence("living"), '{"v":2}', "PX", 60_000)
    assert await heir.takeover.run_once() == []
    assert await stores.instances.holder("living") == living.presence.incarnation


async def test_push_during_a_takeover_is_moved_and_one_after_it_gets_gone(join: Join, stores: Stores) -> None:
    dead, heir = await join("dead"), await join("heir")
    await dead.push(said("early"))
    await dead.die()
    verdicts: list[PushReply] = []

    async def push_late() -> None:
        verdicts.append(await dead.push(said("late")))

    after(stores.owners, "leave_node", push_late)
    await stores.owners.claim_node("n", "dead")
    assert await heir.takeover.run_once() == ["dead"]
    assert verdicts == [PushReply.OK]
    assert jobs(heir.rehomed) == ["early", "late"]
    assert await dead.push(said("too late")) is PushReply.GONE


async def test_the_rest_is_taken_over_although_the_inbox_keeps_filling(join: Join, stores: Stores) -> None:
    """Those who push stop only when its nodes are announced lost: that must not wait for them to stop."""
    dead, heir = await join("dead"), await join("heir")
    epoch = await stores.owners.claim_node("n", "dead")
    await stores.nodes.write(Snapshot("n", epoch, "dead"))
    await dead.push(said("first"))
    await dead.die()
    hand_on = heir.takeover._rehome

    async def provoke_another(message: InboxMessage) -> None:
        await hand_on(message)
        if not heir.told:
            await dead.push(said("another"))

    heir.takeover._rehome = provoke_another
    assert await heir.takeover.run_once() == ["dead"]
    assert heir.told == [NodeLost("n", epoch)]
    assert jobs(heir.rehomed) == ["first", "another"]


async def test_a_takeover_that_breaks_off_is_finished_by_the_next_survivor(join: Join, stores: Stores) -> None:
    dead, first, second = await join("dead"), await join("first"), await join("second")
    await dead.push(said("j"))
    await stores.jobs.driven("dead", "driven", 1)
    await dead.die()
    first.failing = RedisAway("in the middle of it")
    with pytest.raises(RedisAway):
        await first.takeover.run_once()
    assert await second.takeover.run_once() == ["dead"]
    assert (jobs(second.rehomed), second.adopted) == (["j"], ["driven"])


async def test_a_name_whose_inbox_is_closed_already_only_leaves_the_list(join: Join, stores: Stores) -> None:
    """A survivor died between its last two steps; or an instance before its first."""
    dead, heir = await join("dead"), await join("heir")
    await dead.die()
    await stores.instances.close("dead", dead.presence.incarnation)
    assert await heir.takeover.run_once() == ["dead"]
    assert list(await stores.instances.all()) == ["heir"]


async def test_taking_over_twice_is_harmless(join: Join, stores: Stores) -> None:
    dead, heir = await join("dead"), await join("heir")
    await dead.push(said("j"))
    await dead.die()
    assert await heir.takeover.take_over("dead") is TakeoverResult.DONE
    assert await heir.takeover.take_over("dead") is TakeoverResult.DONE
    assert jobs(heir.rehomed) == ["j"]
    assert await _left_of(stores, "dead") == []


async def test_an_inbox_without_its_group_can_be_taken_over_too(join: Join, stores: Stores) -> None:
    dead, heir = await join("dead"), await join("heir")
    await dead.push(said("j"))
    await dead.die()
    inbox = stores.keys.inbox("dead")
    await stores.redis.call_at(inbox, "XGROUP", "DESTROY", inbox, stores.inboxes.settings.group)
    assert await heir.takeover.run_once() == ["dead"]
    assert jobs(heir.rehomed) == ["j"]


async def test_one_that_lost_its_lock_stops(join: Join, stores: Stores) -> None:
    dead, slow, quick = await join("dead"), await join("slow", lock_ms=1), await join("quick")
    for number in range(3):
        await dead.push(said(f"j{number}"))
    await dead.die()

    async def be_overtaken() -> None:
        await stores.redis.call("SET", stores.keys.takeover("dead"), "quick", "PX", 5000)

    after(stores.inboxes, "ensure_group", be_overtaken)
    assert await slow.takeover.take_over("dead") is TakeoverResult.NOT_OURS
    assert slow.rehomed == []
    await stores.redis.call("DEL", stores.keys.takeover("dead"))
    assert await quick.takeover.take_over("dead") is TakeoverResult.DONE


# -- entries that are no good --------------------------------------------------------------------


async def test_an_entry_that_cannot_be_read_becomes_a_dead_letter_of_the_dead(join: Join, stores: Stores) -> None:
    dead, heir = await join("dead"), await join("heir")
    await dead.push_raw("v", "1", "type", "from_node", "size", "3", "data", "}{}")
    await dead.push(said("behind it"))
    await dead.die()
    assert await heir.takeover.run_once() == ["dead"]
    assert jobs(heir.rehomed) == ["behind it"]
    assert [letter.kind for letter in await stores.letters.list("dead")] == ["from_node"]
    assert await stores.letters.instances() == ["dead"]


async def test_an_entry_that_fails_wherever_it_goes_does_not_stop_the_takeover(join: Join, stores: Stores) -> None:
    dead, heir = await join("dead"), await join("heir")
    await dead.push(said("j"))
    await dead.die()
    heir.failing = KeyError("nobody knows what to do with it")
    assert await heir.takeover.run_once() == ["dead"]
    assert [letter.reason for letter in await stores.letters.list("dead")] == [
        "KeyError: 'nobody knows what to do with it'"
    ]


async def test_with_full_dead_letters_the_rest_is_taken_over_and_the_inbox_waits(join: Join, stores: Stores) -> None:
    stores.inboxes.settings = InboxSettings(dlq_maxlen=1)
    dead, heir = await join("dead"), await join("heir")
    for _ in range(3):
        await dead.push_raw("v", "1", "type", "x", "size", "0", "data", "")
    await dead.push(said("good"))
    await stores.jobs.driven("dead", "driven", 1)
    await dead.die()
    assert await heir.takeover.take_over("dead") is TakeoverResult.PARTIAL
    assert (jobs(heir.rehomed), heir.adopted) == (["good"], ["driven"])
    assert (await stores.inboxes.counts("dead")).waiting == 2
    assert await dead.balanced()
    assert heir.count("dragoman_dlq_full_total") == 2
    stores.inboxes.settings = InboxSettings()
    assert await heir.takeover.run_once() == ["dead"]
    assert len(await stores.letters.list("dead")) == 3


async def test_entries_of_a_later_release_wait_for_a_survivor_that_knows_it(join: Join, stores: Stores) -> None:
    dead, heir = await join("dead"), await join("heir")
    await dead.push_raw("v", "2", "type", "from_node", "size", "2", "data", "{}")
    await dead.push(said("known"))
    await dead.die()
    assert await heir.takeover.run_once() == []
    assert jobs(heir.rehomed) == ["known"]
    assert (await stores.inboxes.counts("dead")).waiting == 1
    assert await stores.letters.list("dead") == []
    assert "dead" in await stores.instances.all()


# -- jobs ----------------------------------------------------------------------------------------


async def test_takeover_claims_a_job_before_it_forwards_its_messages(join: Join, stores: Stores) -> None:
    dead, heir = await join("dead"), await join("heir")
    order: list[str] = []
    heir.takeover._adopt = _noting(order, "adopt", heir.takeover._adopt)
    heir.takeover._rehome = _noting(order, "rehome", heir.takeover._rehome)
    for message in (said("j"), Bounced("n", 1, "k", 1)):
        await stores.jobs.create(message.job_id, {"driver": "dead"}, "n", 1)
        await stores.jobs.driven("dead", message.job_id, 1)
        await dead.push(message)
    await dead.die()
    await heir.takeover.run_once()
    assert order == ["adopt", "rehome", "adopt", "rehome"]


async def test_job_that_cannot_be_claimed_does_not_stop_the_takeover(join: Join, stores: Stores) -> None:
    dead, heir = await join("dead"), await join("heir")
    for job in ("broken", "good"):
        await stores.jobs.driven("dead", job, 1)
    adopt = heir.takeover._adopt

    async def fussy(job: str, name: str) -> None:
        if job == "broken":
            raise ValueError("its record cannot be read")
        await adopt(job, name)

    heir.takeover._adopt = fussy
    await dead.die()
    assert await heir.takeover.run_once() == ["dead"]
    assert heir.adopted == ["good"]


async def test_a_takeover_that_fails_does_not_keep_others_from_theirs(join: Join, stores: Stores) -> None:
    heir = await join("heir")
    for name in ("a", "b"):
        await (await join(name)).die()
    real = heir.takeover._end_sessions

    async def broken(dead: str) -> None:
        if dead == "a":
            raise KeyError("a bug")
        await real(dead)

    heir.takeover._end_sessions = broken  # type: ignore[method-assign]
    assert await heir.takeover.run_once() == ["b"]
    heir.takeover._end_sessions = real  # type: ignore[method-assign]
    assert await heir.takeover.run_once() == ["a"]


@pytest.mark.parametrize("node_is_there", [True, False])
async def test_an_unfinished_job_is_watched_while_its_node_is_there_and_ends_instance_lost_otherwise(
    join: Join, whole: Services, stores: Stores, node_is_there: bool
) -> None:
    dead = await join("dead")
    if node_is_there:
        whole.view.seen(Snapshot("n", 1, "elsewhere"))
    await stores.reservations.reserve("n", "j", 1)
    await stores.jobs.create("j", {"driver": "dead"}, "n", 1)
    await stores.jobs.driven("dead", "j", 1)
    await dead.die()
    assert await whole.takeover.take_over("dead") is TakeoverResult.DONE
    job = await stores.jobs.get("j")
    assert job is not None
    if node_is_there:
        assert (job["state"], job["driver"], job["attempt"]) == ("DISPATCHED", "heir", "1")
        assert await stores.reservations.held("n") == ["j"]
        assert await stores.jobs.driven_by("heir", 9) == ["j"]
    else:
        assert (job["state"], job["outcome"], job["code"]) == ("RELEASED", "failed", "INSTANCE_LOST")
        assert await stores.reservations.held("n") == []
        assert await stores.jobs.driven_by("heir", 9) == []


async def test_a_finished_job_keeps_its_outcome(join: Join, whole: Services, stores: Stores) -> None:
    dead = await join("dead")
    await stores.jobs.create("j", {"driver": "dead"}, "n", 1)
    await stores.jobs.driven("dead", "j", 1)
    await stores.jobs.advance("j", Event.RESULT, attempt=1, node="n", outcome=Outcome.OK)
    await dead.die()
    assert await whole.takeover.take_over("dead") is TakeoverResult.DONE
    job = await stores.jobs.get("j")
    assert job is not None
    assert (job["state"], job["outcome"]) == ("RELEASED", "ok")


# -- what a real instance does with the inbox ----------------------------------------------------


async def test_an_assignment_in_the_inbox_of_the_dead_goes_back_to_its_driver(
    join: Join, whole: Services, stores: Stores
) -> None:
    """The dead one still counts as owner of the node when it is asked for: it must not be handed back to it."""
    dead, delivered = await join("dead"), _delivered(whole)
    await stores.owners.claim_node("n", "dead")
    await stores.jobs.create("j", {"driver": "heir"}, "n", 1)
    await dead.push(AssignJob("n", 1, "j", 1, "heir", msgspec.Raw(b"{}")))
    await dead.push(Evict("n", 1))
    await dead.die()
    assert await whole.takeover.take_over("dead") is TakeoverResult.DONE
    assert delivered == [Bounced("n", 1, "j", 1)]


async def test_message_for_a_job_of_a_dead_instance_reaches_its_new_driver(
    join: Join, whole: Services, stores: Stores
) -> None:
    dead, delivered = await join("dead"), _delivered(whole)
    whole.view.seen(Snapshot("n", 1, "elsewhere"))
    for message in (said("j"), Bounced("n", 1, "j", 1)):
        await dead.push(message)
    await stores.jobs.create("j", {"driver": "dead"}, "n", 1)
    await stores.jobs.driven("dead", "j", 1)
    await dead.die()
    assert await whole.takeover.take_over("dead") is TakeoverResult.DONE
    assert delivered == [said("j"), Bounced("n", 1, "j", 1)]


# -- sessions and nodes --------------------------------------------------------------------------


async def test_the_turn_keys_of_its_sessions_go(join: Join, stores: Stores, prefix: str) -> None:
    dead, heir = await join("dead"), await join("heir")
    session, turn = f"s-{prefix}", f"t-{prefix}"
    await stores.owners.claim_session(session, "dead")
    await stores.turns.bind(session, turn, "n")
    await dead.die()
    await heir.takeover.run_once()
    assert await stores.turns.node_of(turn) is None
    assert await stores.turns.current(session) is None


async def test_a_session_that_has_another_owner_keeps_its_turn(join: Join, stores: Stores, prefix: str) -> None:
    dead, heir = await join("dead"), await join("heir")
    session, turn = f"s-{prefix}", f"t-{prefix}"
    await stores.owners.claim_session(session, "dead")
    await stores.owners.claim_session(session, "heir")
    await stores.turns.bind(session, turn, "n")
    await dead.die()
    await heir.takeover.run_once()
    assert await stores.turns.node_of(turn) == "n"
    assert await stores.owners.session_owner(session) == "heir"
    await stores.turns.end(session, turn)


async def test_its_nodes_are_offline_and_announced_lost(join: Join, stores: Stores) -> None:
    dead, heir = await join("dead"), await join("heir")
    epoch = await stores.owners.claim_node("n", "dead")
    await stores.nodes.write(Snapshot("n", epoch, "dead"))
    await dead.die()
    await heir.takeover.run_once()
    assert heir.told == [NodeLost("n", epoch)]
    assert not await stores.nodes.online("n")
    assert await stores.nodes.snapshot("n") is None


async def test_a_node_that_dialled_in_elsewhere_meanwhile_stays_there(join: Join, stores: Stores) -> None:
    dead, heir = await join("dead"), await join("heir")
    old = await stores.owners.claim_node("moved", "dead")
    await stores.nodes.write(Snapshot("moved", old, "dead"))
    new = await stores.owners.claim_node("moved", "heir")
    await stores.nodes.write(Snapshot("moved", new, "heir"))
    await dead.die()
    await heir.takeover.run_once()
    assert heir.told == []
    assert await stores.owners.node_owner("moved") == "heir"
    assert await stores.nodes.online("moved")


async def test_node_registered_elsewhere_loses_only_its_old_epoch(join: Join, stores: Stores) -> None:
    dead, heir = await join("dead"), await join("heir")
    old = await stores.owners.claim_node("moving", "dead")
    await stores.nodes.write(Snapshot("moving", old, "dead"))
    await stores.owners.claim_node("moving", "heir")
    await dead.die()
    await heir.takeover.run_once()
    assert heir.told == [NodeLost("moving", old)]
    assert await stores.nodes.online("moving")
    assert await stores.owners.node_owner("moving") == "heir"


# ------------------------------------------------------------------------------------------------


def after(store: Any, method: str, step: Callable[[], Awaitable[None]]) -> None:
    """Take `step` once, right after the next call of a store's method."""
    real = getattr(store, method)

    async def interrupted(*args: Any) -> Any:
        setattr(store, method, real)
        answer = await real(*args)
        await step()
        return answer

    setattr(store, method, interrupted)


def _noting(order: list[str], word: str, real: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    async def noted(*args: Any) -> None:
        order.append(word)
        await real(*args)

    return noted


def _delivered(services: Services) -> list[InboxMessage]:
    """What this instance handles itself for the jobs it drives."""
    delivered: list[InboxMessage] = []
    services.handlers.register(Bounced, delivered.append, rehome=services.router.rehome_to_driver)
    services.handlers.register(FromNode, delivered.append, rehome=services.router.rehome_to_driver)
    return delivered


async def _left_of(stores: Stores, name: str) -> list[str]:
    keys = stores.keys
    mine = (
        keys.inbox(name), keys.open(name), keys.counts(name), keys.jobs_of(name), keys.sessions_of(name),
        keys.nodes_of(name), keys.takeover(name),
    )  # fmt: skip
    return [key for key in mine if await stores.redis.call("EXISTS", key)]
