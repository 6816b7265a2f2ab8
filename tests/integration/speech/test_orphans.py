"""Jobs whose driver died are watched to their end: answered, or lost with the node, and their slot goes back."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from dragoman.domain.job import Event, Outcome
from dragoman.domain.placement import Assign
from dragoman.domain.rooms import EntryKind, Member
from dragoman.protocol.node import JobError
from dragoman.protocol.peer import JobEnded, JobMoved, RoomUtterance
from dragoman.services.speech.job_request import JobRequest
from dragoman.services.upkeep.presence import TakeoverResult
from dragoman.store.errors import RedisAway, UnknownOutcome
from support.in_process import (
    SELDOM_RENEWED,
    TIMEOUT_S,
    InProcessInstance,
    InProcessNode,
    OpenInstance,
    job_request,
    place,
)
from support.redis_servers import LONG_CLUSTER
from support.waiting import wait_until

pytestmark = pytest.mark.parametrize("redis_at", ["single", LONG_CLUSTER], indirect=True)


async def bereaved(open_instance: OpenInstance) -> tuple[InProcessInstance, InProcessNode, JobRequest, dict[str, str]]:
    """An instance that has adopted a job of another, which recorded it and is never heard of again."""
    heir, dead = await open_instance("heir"), await open_instance("dead")
    node = await heir.node("n")
    await wait_until(lambda: dead.knows("n"), TIMEOUT_S)
    mine = job_request()
    assert isinstance(await place(dead, mine), Assign)
    await heir.services.orphans.adopt(mine.job_id, "dead")
    assert len(heir.services.orphans) == 1
    about = {"job_id": mine.job_id, "session_id": mine.session_id, "trace_id": mine.trace_id}
    return heir, node, mine, about


async def test_an_orphans_answer_is_recorded_and_its_slot_goes_back(open_instance: OpenInstance) -> None:
    heir, node, mine, about = await bereaved(open_instance)
    assert (await heir.job(mine.job_id))["driver"] == "heir"
    node.answer({**about, "attempt_id": 1, "utterance_index": 0})
    record = await wait_until(lambda: heir.released(mine.job_id), TIMEOUT_S)
    assert (record["outcome"], record["attempt"]) == ("ok", "1")
    await wait_until(lambda: free(heir), TIMEOUT_S)


async def test_a_code_that_a_node_makes_up_for_an_orphan_does_not_make_a_metric(open_instance: OpenInstance) -> None:
    heir, node, mine, about = await bereaved(open_instance)
    error = JobError("MADE_UP", "x")
    node.answer({**about, "attempt_id": 1, "utterance_index": 0}, success=False, error=error)
    record = await wait_until(lambda: heir.released(mine.job_id), TIMEOUT_S)
    assert (record["outcome"], record["code"]) == ("failed", "MADE_UP")
    assert heir.count("dragoman_jobs_total", outcome="failed", code="OTHER") == 1


async def test_an_orphan_whose_node_goes_too_is_lost_with_its_instance(open_instance: OpenInstance) -> None:
    heir, node, mine, _ = await bereaved(open_instance)
    node.disconnect()
    record = await wait_until(lambda: heir.released(mine.job_id), TIMEOUT_S)
    assert (record["outcome"], record["code"]) == ("failed", "INSTANCE_LOST")
    await wait_until(lambda: free(heir), TIMEOUT_S)


async def taken_over(
    open_instance: OpenInstance, *, resumable: bool
) -> tuple[InProcessInstance, InProcessNode, JobRequest]:
    """An instance dies with a session and a job of it, which a node of the heir has."""
    heir, dead = await open_instance("heir"), await open_instance("dead", **SELDOM_RENEWED)
    node = await heir.node("n")
    await wait_until(lambda: dead.knows("n"), TIMEOUT_S)
    mine = job_request()
    await dead.stores.owners.claim_session(mine.session_id, "dead")
    if resumable:
        await dead.redis.call("HSET", dead.keys.session_state(mine.session_id), "epoch", 1)
        await dead.redis.call("PEXPIRE", dead.keys.session_state(mine.session_id), 600_000)
    assert isinstance(await place(dead, mine), Assign)
    await heir.redis.call("DEL", heir.keys.presence("dead"))
    assert await heir.services.takeover.take_over("dead") is TakeoverResult.DONE
    return heir, node, mine


async def test_the_slot_of_a_job_whose_session_died_with_its_instance_goes_back_in_the_takeover(
    open_instance: OpenInstance,
) -> None:
    heir, node, mine = await taken_over(open_instance, resumable=False)
    record = await heir.released(mine.job_id)
    assert (record["outcome"], record["code"]) == ("failed", "INSTANCE_LOST")
    assert await free(heir)
    await wait_until(lambda: node.cancelled == [mine.job_id], TIMEOUT_S)


async def test_a_job_whose_session_can_be_resumed_keeps_its_slot_through_the_takeover(
    open_instance: OpenInstance,
) -> None:
    heir, node, mine = await taken_over(open_instance, resumable=True)
    assert len(heir.services.orphans) == 1
    assert await heir.reserved("n") == 1
    about = {"job_id": mine.job_id, "session_id": mine.session_id, "trace_id": mine.trace_id}
    node.answer({**about, "attempt_id": 1, "utterance_index": 0})
    record = await wait_until(lambda: heir.released(mine.job_id), TIMEOUT_S)
    assert (record["outcome"], node.cancelled) == ("ok", [])


# -- speech in rooms ---------------------------------------------------------------------------------

ROOM = "3f6c1c1e-7c1b-4b8e-9d52-3d1a6c0b7a11"
IN_ROOM = RoomUtterance(ROOM, 0, "Ann", "en", "", 1, 20)


async def finished_in_room(
    open_instance: OpenInstance, outcome: Outcome, *, appended: bool = False
) -> list[tuple[EntryKind, str, str]]:
    """What the log of a room has after the takeover of an instance that has recorded the end of a job."""
    heir, dead = await open_instance("heir"), await open_instance("dead", **SELDOM_RENEWED)
    await heir.node("n")
    await wait_until(lambda: dead.knows("n"), TIMEOUT_S)
    rooms, mine = heir.services.rooms.store, replace(job_request(), room=IN_ROOM)
    settings: dict[str, Any] = {"tenant": "default", "creator": "c", "settings": b"{}", "log_epoch": "e"}
    await rooms.create(ROOM, "123456", **settings, persistent=False, locked=False)
    await rooms.join(ROOM, Member(mine.session_id, "dead", 0, "Ann", "en", "en", "p"))
    assert isinstance(await place(dead, mine), Assign)
    await dead.stores.jobs.advance(mine.job_id, Event.RESULT, attempt=1, node="n", outcome=outcome)
    if appended:
        said = {"lang": "en", "text": "said", "about": b"{}"}
        await rooms.append_original(ROOM, f"{mine.session_id}:u0", mine.session_id, 0, **said)  # type: ignore[arg-type]
    await heir.redis.call("DEL", heir.keys.presence("dead"))
    assert await heir.services.takeover.take_over("dead") is TakeoverResult.DONE
    return [(entry.kind, entry.caption, entry.text) for entry in await rooms.read(ROOM, 0, 10)]


async def test_text_that_died_with_the_driver_before_it_was_appended_is_noted_as_lost(
    open_instance: OpenInstance,
) -> None:
    log = await finished_in_room(open_instance, Outcome.OK)
    assert log == [(EntryKind.LOST, "s-1:u0", "instance_lost")]


async def test_takeover_changes_nothing_of_a_caption_that_is_in_the_log(open_instance: OpenInstance) -> None:
    log = await finished_in_room(open_instance, Outcome.OK, appended=True)
    assert log == [(EntryKind.ORIGINAL, "s-1:u0", "said")]


async def test_takeover_notes_no_loss_of_an_empty_utterance(open_instance: OpenInstance) -> None:
    assert await finished_in_room(open_instance, Outcome.EMPTY) == []


class Stumbling:
    """A method that fails once, before it does anything or with its answer lost."""

    def __init__(self, owner: Any, name: str, *, answer_lost: bool) -> None:
        self._method: Callable[..., Awaitable[Any]] = getattr(owner, name)
        self._answer_lost, self.stumbled = answer_lost, False
        setattr(owner, name, self._start)

    def _start(self, *args: Any, **more: Any) -> "asyncio.Future[Any]":
        return asyncio.ensure_future(self._call(*args, **more))

    async def _call(self, *args: Any, **more: Any) -> Any:
        if self.stumbled:
            return await self._method(*args, **more)
        self.stumbled = True
        if self._answer_lost:
            await self._method(*args, **more)
            raise UnknownOutcome("its answer is lost")
        raise RedisAway("for a moment")


def heard_of(instance: InProcessInstance) -> list[str]:
    """How the ends of jobs are told, as often as they are."""
    told: list[str] = []
    deliver = instance.services.orphans._results.deliver

    async def listen(message: JobEnded | JobMoved) -> None:
        assert isinstance(message, JobEnded)
        await deliver(message)
        told.append(message.outcome)

    instance.services.orphans._results.deliver = listen  # type: ignore[method-assign]
    return told


STEPS = [("_jobs", "advance"), ("_results", "deliver"), ("_reservations", "release"), ("_jobs", "undriven")]


@pytest.mark.parametrize("answer_lost", [False, True])
@pytest.mark.parametrize(("part", "step"), STEPS)
@pytest.mark.parametrize(("answers", "outcome"), [(True, "ok"), (False, "failed")])
async def test_end_of_an_orphan_is_recorded_and_reported_when_redis_is_back(
    open_instance: OpenInstance, part: str, step: str, answer_lost: bool, answers: bool, outcome: str
) -> None:
    heir, node, mine, about = await bereaved(open_instance)
    told = heard_of(heir)
    slip = Stumbling(getattr(heir.services.orphans, part), step, answer_lost=answer_lost)
    if answers:
        node.answer({**about, "attempt_id": 1, "utterance_index": 0})
    else:
        node.disconnect()
    record = await wait_until(lambda: heir.released(mine.job_id), TIMEOUT_S)
    await wait_until(lambda: free(heir), TIMEOUT_S)
    await wait_until(lambda: not len(heir.services.orphans), TIMEOUT_S)
    assert (record["outcome"], slip.stumbled) == (outcome, True)
    assert set(told) == {outcome}


async def test_a_job_that_is_lost_when_it_is_adopted_ends_when_redis_is_back(open_instance: OpenInstance) -> None:
    heir, dead = await open_instance("heir"), await open_instance("dead")
    await dead.node("n")
    mine = job_request()
    assert isinstance(await place(dead, mine), Assign)
    heir.services.orphans._knows = lambda node: False
    Stumbling(heir.services.orphans._jobs, "advance", answer_lost=False)
    await heir.services.orphans.adopt(mine.job_id, "dead")
    record = await wait_until(lambda: heir.released(mine.job_id), TIMEOUT_S)
    assert (record["outcome"], record["code"]) == ("failed", "INSTANCE_LOST")


async def test_orphan_whose_node_recognised_nothing_has_no_result(open_instance: OpenInstance) -> None:
    """As if its driver lived: its session is sent nothing for it."""
    heir, node, mine, about = await bereaved(open_instance)
    told = heard_of(heir)
    node.answer({**about, "attempt_id": 1, "utterance_index": 0}, text_asr="", text_translated="")
    record = await wait_until(lambda: heir.released(mine.job_id), TIMEOUT_S)
    assert (record["outcome"], told) == ("empty", ["empty"])


async def test_result_of_an_earlier_attempt_does_not_end_an_orphan(open_instance: OpenInstance) -> None:
    heir, node, mine, about = await bereaved(open_instance)
    node.answer({**about, "attempt_id": 7, "utterance_index": 0})
    node.answer({**about, "attempt_id": 1, "utterance_index": 0})
    record = await wait_until(lambda: heir.released(mine.job_id), TIMEOUT_S)
    assert record["outcome"] == "ok"


async def free(instance: InProcessInstance) -> bool:
    return not await instance.reserved("n") and not await instance.driven()
