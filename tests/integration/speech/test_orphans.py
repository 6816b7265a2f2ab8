"""Jobs whose driver died are watched to their end: answered, or lost with the node, and their slot goes back."""

import pytest

from dragoman.domain.placement import Assign
from dragoman.protocol.node import JobError
from dragoman.services.speech.order import Order
from integration.speech.house import PATIENCE_S, House, Open, WiredNode, order, place
from redis_fixtures import CLUSTER
from waiting import wait_until

pytestmark = pytest.mark.parametrize("redis_at", ["single", CLUSTER], indirect=True)


async def bereaved(house: Open) -> tuple[House, WiredNode, Order, dict[str, str]]:
    """An instance that has adopted a job of another, which recorded it and is never heard of again."""
    heir, dead = await house("heir"), await house("dead")
    node = await heir.node("n")
    await wait_until(lambda: dead.knows("n"), PATIENCE_S)
    mine = order()
    assert isinstance(await place(dead, mine), Assign)
    await heir.services.orphans.adopt(mine.job_id, "dead")
    assert len(heir.services.orphans) == 1
    about = {"job_id": mine.job_id, "session_id": mine.session_id, "trace_id": mine.trace_id}
    return heir, node, mine, about


async def test_an_orphans_answer_is_recorded_and_its_slot_goes_back(house: Open) -> None:
    heir, node, mine, about = await bereaved(house)
    assert (await heir.job(mine.job_id))["driver"] == "heir"
    node.answer({**about, "attempt_id": 1, "utterance_index": 0})
    record = await wait_until(lambda: heir.released(mine.job_id), PATIENCE_S)
    assert (record["outcome"], record["attempt"]) == ("ok", "1")
    await wait_until(lambda: free(heir), PATIENCE_S)


async def test_a_code_that_a_node_makes_up_for_an_orphan_does_not_make_a_metric(house: Open) -> None:
    heir, node, mine, about = await bereaved(house)
    error = JobError("MADE_UP", "x")
    node.answer({**about, "attempt_id": 1, "utterance_index": 0}, success=False, error=error)
    record = await wait_until(lambda: heir.released(mine.job_id), PATIENCE_S)
    assert (record["outcome"], record["code"]) == ("failed", "MADE_UP")
    assert heir.count("dragoman_jobs_total", outcome="failed", code="OTHER") == 1


async def test_an_orphan_whose_node_goes_too_is_lost_with_its_instance(house: Open) -> None:
    heir, node, mine, _ = await bereaved(house)
    node.hang_up()
    record = await wait_until(lambda: heir.released(mine.job_id), PATIENCE_S)
    assert (record["outcome"], record["code"]) == ("failed", "INSTANCE_LOST")
    await wait_until(lambda: free(heir), PATIENCE_S)


async def free(house: House) -> bool:
    return not await house.reserved("n") and not await house.driven()
