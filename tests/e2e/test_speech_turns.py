"""A turn stays on one node, and nothing of it outlives it: long speech, many turns, interruptions, a dying node."""

import asyncio
from collections import defaultdict

import pytest

from support.raw_node import Message, RawNode
from support.redis_servers import LONG_CLUSTER
from support.speech import ACKING, TIMEOUT_S, Scenario, Talker, module_harness
from support.waiting import wait_until

CHUNK_PACKETS = 13  # 260 ms, about what a web client sends
LONG = 500  # packets: ten seconds, which are cut at once
PAUSE_MS = 1500


harness = module_harness({"speech__pause_ms": PAUSE_MS}, on=("single", LONG_CLUSTER))


async def given(nodes: list[RawNode], count: int) -> list[tuple[RawNode, Message]]:
    """What the nodes were given, in order of index, once it is `count` jobs."""
    await wait_until(lambda: sum(len(node.jobs) for node in nodes) >= count, TIMEOUT_S, f"{count} jobs")
    jobs = [(node, job) for node in nodes for job in node.jobs]
    assert len(jobs) == count
    return sorted(jobs, key=lambda pair: (pair[1]["session_id"], pair[1]["utterance_index"]))


async def literal(scenario: Scenario, key: str) -> dict[str, str]:
    flat = await scenario.redis.call("HGETALL", key)
    return {name.decode(): value.decode() for name, value in zip(flat[::2], flat[1::2], strict=True)}


async def is_gone(scenario: Scenario, turn: str, session: str) -> bool:
    return not await scenario.redis.call("EXISTS", f"scheduler:turn:{turn}") and not await scenario.redis.call(
        "EXISTS", f"scheduler:session:{session}"
    )


async def test_45_seconds_without_a_pause_make_five_jobs_on_one_of_ten_nodes(scenario: Scenario) -> None:
    nodes = await scenario.nodes(10, features=ACKING)
    talker = await scenario.talker()
    for _ in range(45_000 // 260):
        await talker.speak(CHUNK_PACKETS)
    jobs = await given(nodes, 4)
    (turn,) = {job["turn_id"] for _, job in jobs}
    (node,) = {node.id for node, _ in jobs}
    assert await literal(scenario, f"scheduler:turn:{turn}") == {"affinity_node_id": node}
    assert await literal(scenario, f"scheduler:session:{talker.session_id}") == {"current_turn_id": turn}
    await talker.speak(2, final=True)
    jobs = await given(nodes, 5)
    assert {job["turn_id"] for _, job in jobs} == {turn}
    assert {node.id for node, _ in jobs} == {node}
    assert [job["utterance_index"] for _, job in jobs] == [0, 1, 2, 3, 4]
    assert [job.get("is_max_duration_triggered") for _, job in jobs] == [True] * 4 + [None]
    assert [job.get("is_manual_cut") for _, job in jobs] == [None] * 4 + [True]
    assert [job["padding_ms"] for _, job in jobs] == [220] * 4 + [280]
    for index in range(5):
        assert await talker.result(index, TIMEOUT_S)
    await wait_until(lambda: is_gone(scenario, turn, talker.session_id), TIMEOUT_S)
    assert await scenario.count("dragoman_affinity_total{result=hit}") >= 4


async def test_select_node_turn_affinity_contract(scenario: Scenario) -> None:
    """The literal names that other tools read: two keys, one field each, no TTL, written once."""
    await scenario.nodes(3, features=ACKING)
    talker = await scenario.talker()
    await talker.speak(LONG)
    first = await talker.result(0, TIMEOUT_S)
    record = await scenario.job(first["job_id"])
    turn, session = record["turn_id"], talker.session_id
    assert record["receipt"]["affinity"] == "first"
    turn_key, session_key = f"scheduler:turn:{turn}", f"scheduler:session:{session}"
    assert await literal(scenario, turn_key) == {"affinity_node_id": record["node_id"]}
    assert await literal(scenario, session_key) == {"current_turn_id": turn}
    assert [await scenario.redis.call("PTTL", key) for key in (turn_key, session_key)] == [-1, -1]
    await talker.speak(LONG)
    second = await scenario.job((await talker.result(1, TIMEOUT_S))["job_id"])
    assert (second["receipt"]["affinity"], second["node_id"]) == ("hit", record["node_id"])
    assert await literal(scenario, turn_key) == {"affinity_node_id": record["node_id"]}
    await talker.speak(1, final=True)
    third = await scenario.job((await talker.result(2, TIMEOUT_S))["job_id"])
    assert (third["receipt"]["affinity"], third["node_id"]) == ("hit", record["node_id"])
    await wait_until(lambda: is_gone(scenario, turn, session), TIMEOUT_S)


@pytest.mark.parametrize("features", [(), ACKING], ids=["old", "acking"])
async def test_when_the_node_dies_in_mid_turn_the_next_job_is_placed_at_once_elsewhere(
    scenario: Scenario, features: tuple[str, ...]
) -> None:
    nodes = await scenario.nodes(2, features=features)
    talker = await scenario.talker()
    await talker.speak(LONG)
    await talker.result(0, TIMEOUT_S)
    ((doomed, first),) = await given(nodes, 1)
    other = next(node for node in nodes if node is not doomed)
    doomed.die()
    await wait_until(lambda: scenario.forgot(doomed.id), TIMEOUT_S)
    await talker.speak(LONG)
    await talker.speak(1, final=True)
    for index in (1, 2):
        result = await talker.result(index, TIMEOUT_S)
        record = await scenario.job(result["job_id"])
        assert (record["node_id"], record["attempt"]) == (other.id, "1")
        assert record["receipt"]["affinity"] == "offline"
        assert record["turn_id"] == first["turn_id"]
    await wait_until(lambda: is_gone(scenario, first["turn_id"], talker.session_id), TIMEOUT_S)


async def speak_turns(talker: Talker, turns: int) -> None:
    for _ in range(turns):
        await talker.speak(LONG)
        await talker.speak(1, final=True)


async def test_many_speakers_at_once_keep_every_turn_together(scenario: Scenario) -> None:
    nodes = await scenario.nodes(5, features=(*ACKING, "slots:50"))
    talkers = [await scenario.talker() for _ in range(20)]
    await asyncio.gather(*(speak_turns(talker, 5) for talker in talkers))
    jobs = await given(nodes, 200)
    used = defaultdict(set)
    for node, job in jobs:
        used[job["turn_id"]].add(node.id)
    assert len(used) == 100
    assert all(len(ids) == 1 for ids in used.values())
    for talker in talkers:
        for index in range(10):
            assert await talker.result(index, TIMEOUT_S)
