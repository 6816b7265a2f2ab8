"""Switches of the configuration that no other test turns: what each of them changes, on real instances."""

import signal

from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.tools.processes import InstanceProcess
from support.cluster import Cluster
from support.waiting import wait_until

TIMEOUT_S = 60.0
SECRET = "a-secret-of-more-than-thirty-two-bytes"


async def nodes(instance: InstanceProcess) -> set[str]:
    return {row["node_id"] for row in (await instance.get("/api/v1/cluster"))["nodes"]}


# -- scheduler.phase2.node_snapshot.enabled ------------------------------------------------------


async def test_instance_with_node_snapshots_off_neither_uses_nor_publishes_nodes(
    cluster: Cluster, redis: Redis, keys: Keys
) -> None:
    shared, other = await cluster.instance(), await cluster.instance()
    cluster.node(shared, node_id="shared")
    await wait_until(lambda: other.has_nodes(1), TIMEOUT_S)
    alone = await cluster.instance(scheduler__phase2__node_snapshot__enabled=False)
    cluster.node(alone, node_id="alone")
    await wait_until(alone.node_count, TIMEOUT_S)
    assert await nodes(alone) == {"alone"}
    # Announcements come in order: what `alone` told of its node, if it did, is known before this one.
    cluster.node(shared, node_id="later")
    await wait_until(lambda: other.has_nodes(2), TIMEOUT_S)
    assert await nodes(other) == await nodes(shared) == {"shared", "later"}
    assert await redis.call("EXISTS", keys.node_snapshot("alone"), keys.node_presence("alone")) == 0
    assert await nodes(alone) == {"alone"}
    speaker = await cluster.speaker(alone)
    await speaker.utterance(0)
    assert await speaker.result(0, TIMEOUT_S)


# -- scheduler.phase2.dlq_enabled ----------------------------------------------------------------


async def test_entries_of_a_dead_instance_stay_in_its_inbox_while_dead_letters_are_off(
    cluster: Cluster, redis: Redis, keys: Keys
) -> None:
    here = await cluster.instance(scheduler__phase2__instance_id="here")
    survivor = await cluster.instance(scheduler__phase2__dlq_enabled=False)
    here.signal(signal.SIGSTOP)
    await redis.call("XADD", keys.inbox("here"), "*", "rub", "bish")
    here.signal(signal.SIGKILL)

    def rounds() -> int:
        return survivor.log.read_text().count("dead letters are off")

    await wait_until(lambda: rounds() > 1, TIMEOUT_S)
    assert await redis.call("XLEN", keys.inbox("here")) == 1
    assert await redis.call("EXISTS", keys.dlq("here")) == 0
    assert await survivor.metric("dragoman_takeovers_total") == 0
