"""A Cluster that changes under load: slots that move, masters that die or hang, and nobody who waits for ever."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from signal import SIGCONT, SIGSTOP

import pytest

from dragoman.embedded.engine import RedisServer, free_port
from dragoman.store import cluster as cluster_module
from dragoman.store.cluster import ClusterRedis
from dragoman.store.errors import RedisAway, StoreError, UnknownOutcome
from dragoman.store.inbox import Inboxes, InboxSettings, PushReply
from dragoman.store.instances import Instances
from dragoman.store.keys import Keys
from dragoman.store.redis import Dedicated, Redis, Subscriber
from dragoman.tools.redis_cluster import RedisCluster, key_slot
from support.redis_servers import BINARIES, OK, RedisAt, connected, own, scripted_redis
from support.waiting import wait_until

pytestmark = pytest.mark.cluster
TIMEOUT_S = 60.0


@pytest.fixture(scope="module", params=BINARIES)
def mortal_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisAt]:
    """A Cluster whose nodes these tests may kill; each leaves it whole."""
    binary = request.getfixturevalue(request.param)
    with RedisCluster(binary, tmp_path_factory.mktemp("mortal"), patience_s=TIMEOUT_S) as cluster:
        yield RedisAt("cluster", tuple(cluster.urls), cluster=cluster)


class Load:
    """Callers that never stop: each increments its own counter, and notes what it was told."""

    def __init__(self, redis: Redis, names: list[str]) -> None:
        self.redis = redis
        self.told: dict[str, Counter[str]] = {name: Counter() for name in names}
        self._over = False
        self._tasks = [asyncio.create_task(self._caller(name)) for name in names]

    async def _caller(self, name: str) -> None:
        while not self._over:
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    await self.redis.call("INCR", name)
                self.told[name]["ok"] += 1
            except StoreError as error:
                self.told[name][type(error).__name__] += 1
                await asyncio.sleep(0.005)  # what a caller that is told to come back later does

    def done(self, *names: str) -> int:
        return sum(self.told[name]["ok"] for name in names or self.told)

    async def more(self, calls: int = 200) -> None:
        """Wait until every caller has got through that many times more."""
        goals = {name: told["ok"] + calls for name, told in self.told.items()}
        await wait_until(lambda: all(self.told[name]["ok"] >= goal for name, goal in goals.items()), TIMEOUT_S)

    async def stop(self) -> None:
        self._over = True
        await asyncio.gather(*self._tasks)

    async def counted(self) -> dict[str, int]:
        return {name: int(await self.redis.call("GET", name)) for name in self.told}


def move_slot(cluster: RedisCluster, slot: int) -> RedisServer:
    """Move one slot with all its keys to another master, step by step as redis-cli does; the new master."""
    source = cluster.master_of(slot)
    masters = {cluster.master_of(number * 16384 // 3 + 1) for number in range(3)}
    target = next(node for node in masters if node is not source)
    target_id = target.call("CLUSTER", "MYID")
    target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", source.call("CLUSTER", "MYID"))
    source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
    while names := source.call("CLUSTER", "GETKEYSINSLOT", slot, 3):
        source.call("MIGRATE", "127.0.0.1", target.port or 0, "", 0, 10_000, "KEYS", *names)
    for node in (target, source, *masters):
        node.call("CLUSTER", "SETSLOT", slot, "NODE", target_id)
    return target


# -- slots that move --------------------------------------------------------------------------------


async def test_while_a_slot_moves_no_call_fails_and_every_counter_is_exact(mortal_cluster: RedisAt) -> None:
    cluster, tag = own(mortal_cluster.cluster), f"moves-{time.monotonic_ns()}"
    names = [f"{{{tag}}}:{n}" for n in range(40)]
    async with connected(mortal_cluster) as redis:
        load = Load(redis, names)
        await load.more()
        for _ in range(2):
            target = await asyncio.to_thread(move_slot, cluster, key_slot(tag))
            await load.more()
            assert redis.address_of(names[0]).port == target.port
        await load.stop()
        assert {kind for told in load.told.values() for kind in told} == {"ok"}
        assert await load.counted() == {name: told["ok"] for name, told in load.told.items()}


async def test_scripts_of_several_keys_are_run_once_each_while_their_slot_moves(mortal_cluster: RedisAt) -> None:
    cluster, keys = own(mortal_cluster.cluster), Keys(f"t-{time.monotonic_ns()}")
    async with connected(mortal_cluster) as redis:
        inboxes = Inboxes(redis, keys, InboxSettings(maxlen=1_000_000))
        await Instances(redis, keys).open("i", "a", "scheduler")
        told: Counter[str] = Counter()
        over = asyncio.Event()

        async def pusher() -> None:
            while not over.is_set():
                try:
                    told[await inboxes.push("i", "kind", b"data")] += 1
                except RedisAway:  # a slot half here and half there for too long: not done, try again
                    told["away"] += 1

        pushers = [asyncio.create_task(pusher()) for _ in range(20)]
        await wait_until(lambda: told[PushReply.OK] > 200, TIMEOUT_S)
        await asyncio.to_thread(move_slot, cluster, key_slot(keys.inbox("i")))
        before = told[PushReply.OK]
        await wait_until(lambda: told[PushReply.OK] > before + 200, TIMEOUT_S)
        over.set()
        await asyncio.gather(*pushers)
        assert set(told) <= {PushReply.OK, "away"}
        tally = await inboxes.counts("i")
        assert (tally.added, tally.waiting, tally.bytes) == (
            told[PushReply.OK],
            told[PushReply.OK],
            4 * told[PushReply.OK],
        )


class Reading:
    """A blocking reader of a stream that remembers how far it is."""

    def __init__(self, redis: Redis, stream: str) -> None:
        self.stream, self.last = stream, "0"
        self.connection = Dedicated(redis, stream, "reader")

    async def read(self) -> bool:
        command = ("XREAD", "BLOCK", 100, "STREAMS", self.stream, self.last)
        reply = await self.connection.call(*command, patience_s=TIMEOUT_S)
        self.last = reply[0][1][-1][0].decode() if reply else self.last
        return bool(reply)


async def test_a_blocking_reader_follows_its_key_to_another_master(mortal_cluster: RedisAt) -> None:
    cluster, stream = own(mortal_cluster.cluster), f"stream-{time.monotonic_ns()}"
    async with connected(mortal_cluster) as redis, connected(mortal_cluster) as writer:
        reading = Reading(redis, stream)
        try:
            await writer.call("XADD", stream, "*", "n", "1")
            assert await wait_until(reading.read, TIMEOUT_S)
            # Only the reader learns of it: no other call of its client touches this slot.
            await asyncio.to_thread(move_slot, cluster, key_slot(stream))
            await writer.call("XADD", stream, "*", "n", "2")
            assert await wait_until(reading.read, TIMEOUT_S, tolerate=RedisAway)
        finally:
            await reading.connection.close()


# -- masters that go --------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["killed", "hung"])
async def test_a_master_that_goes_is_replaced_and_no_call_is_left_without_an_answer(
    mortal_cluster: RedisAt, fault: str
) -> None:
    cluster, mark = own(mortal_cluster.cluster), time.monotonic_ns()
    names = [f"{fault}-{mark}-{n}" for n in range(60)]
    async with connected(mortal_cluster, timeout_s=1.0) as redis:
        load = Load(redis, names)
        await load.more()
        victim = cluster.master_of(names[0])
        elsewhere = [name for name in names if redis.address_of(name).port != victim.port]
        here = [name for name in names if name not in elsewhere]
        if fault == "killed":
            victim.kill()
        else:
            victim.child.signal(SIGSTOP)
        await wait_until(lambda: all(load.told[name].total() > load.told[name]["ok"] for name in here), TIMEOUT_S)
        await load.more()
        assert all(redis.address_of(name).port != victim.port for name in names)
        await load.stop()
        counted = await load.counted()
        # Redis replicates after it has answered, so what its last moments held may be gone; never is there more.
        for name, told in load.told.items():
            assert counted[name] <= told["ok"] + told[UnknownOutcome.__name__]
        for name in elsewhere:
            assert counted[name] >= load.told[name]["ok"]
        await bring_back(victim, fault)
        await wait_until(lambda: redis.connected, TIMEOUT_S)


async def bring_back(victim: RedisServer, fault: str) -> None:
    """As somebody's replica: the Cluster is whole again, and the next test finds it so."""
    if fault == "killed":
        victim.start()
    else:
        victim.child.signal(SIGCONT)
    await wait_until(lambda: "master_link_status:up" in victim.call("INFO", "replication"), TIMEOUT_S, tolerate=OSError)


async def test_a_blocking_reader_does_not_wait_for_a_master_that_was_replaced(mortal_cluster: RedisAt) -> None:
    cluster, stream = own(mortal_cluster.cluster), f"stream-{time.monotonic_ns()}"
    # However patient the client is with a server that is away.
    async with connected(mortal_cluster, timeout_s=10 * TIMEOUT_S) as redis:
        reading = Reading(redis, stream)
        try:
            await redis.call("XADD", stream, "*", "n", "1")
            assert await wait_until(reading.read, TIMEOUT_S)
            victim = cluster.master_of(stream)
            victim.kill()
            await wait_until(lambda: redis.call("XADD", stream, "*", "n", "2"), TIMEOUT_S, tolerate=StoreError)
            async with asyncio.timeout(TIMEOUT_S):
                assert await wait_until(reading.read, TIMEOUT_S, tolerate=StoreError)
        finally:
            await reading.connection.close()
        await bring_back(victim, "killed")


async def test_a_listener_goes_to_another_server_when_its_own_dies(mortal_cluster: RedisAt) -> None:
    cluster, channel, heard = own(mortal_cluster.cluster), f"channel-{time.monotonic_ns()}", list[bytes]()
    async with connected(mortal_cluster) as redis:
        ear = Subscriber(redis, channel, heard.append)
        listening = asyncio.create_task(ear.run())
        try:
            await wait_until(lambda: ear.listening, TIMEOUT_S)
            await wait_until(lambda: listeners_at(cluster, channel), TIMEOUT_S)
            (listened_at,) = listeners_at(cluster, channel)
            listened_at.kill()

            async def said_and_heard() -> bool:
                await redis.publish(channel, b"again")
                return b"again" in heard

            await wait_until(said_and_heard, TIMEOUT_S, tolerate=StoreError)
        finally:
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening
        await asyncio.to_thread(cluster.wait_failover, listened_at)
        await bring_back(listened_at, "killed")


def listeners_at(cluster: RedisCluster, channel: str) -> list[RedisServer]:
    return [node for node in cluster.nodes if channel in node.call("PUBSUB", "CHANNELS")]


# -- finding one's way ------------------------------------------------------------------------------


async def test_any_one_node_is_enough_to_find_the_others(mortal_cluster: RedisAt) -> None:
    for url in mortal_cluster.urls:
        redis = ClusterRedis([url])
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await redis.wait_connected()
            assert len(redis.addresses()) == 3
            assert await asyncio.gather(*(redis.call("GET", f"nothing-{n}") for n in range(50))) == [None] * 50
        finally:
            await redis.close()


async def test_a_seed_that_is_not_there_is_passed_over(mortal_cluster: RedisAt) -> None:
    redis = ClusterRedis(["redis://127.0.0.1:1", mortal_cluster.urls[-1]])
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await redis.wait_connected()
        assert await redis.call("GET", "nothing") is None
    finally:
        await redis.close()


async def test_calls_fail_before_the_first_cluster_node_is_reached() -> None:
    redis = ClusterRedis(["redis://127.0.0.1:1"])
    try:
        with pytest.raises(RedisAway, match="no master of the Redis Cluster is known for slot"):
            await redis.call("GET", "x")
        with pytest.raises(RedisAway, match="no master of the Redis Cluster is known for x"):
            redis.address_of("x")
        with pytest.raises(RedisAway, match="no master of the Redis Cluster is known"):
            await redis.on_each("PING")
        assert redis.addresses() == []
        assert not redis.connected
    finally:
        await redis.close()


@pytest.mark.parametrize("word", ["MOVED", "ASK"])
async def test_a_call_sent_on_to_a_server_we_have_not_met_waits_until_it_is_reached(
    word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "MAX_REDIRECTS", 10_000)  # the patience of the test, not the client's
    known, unmet = free_port(), free_port()
    master = known

    def send_on(_: int, command: list[bytes]) -> bytes:
        nonlocal master
        if command[0] == b"CLUSTER":
            return b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:%d\r\n" % master
        if command[0] != b"GET":
            return OK
        master = unmet if word == "MOVED" else known
        return b"-%s 0 127.0.0.1:%d\r\n" % (word.encode(), unmet)

    async with scripted_redis(send_on, known) as url:
        redis = ClusterRedis([url])
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await redis.wait_connected()
            asked = redis.call("GET", "x")
            await wait_until(lambda: ("127.0.0.1", unmet) in redis._links, TIMEOUT_S)
            async with scripted_redis(lambda _, command: b"$2\r\nhi\r\n" if command[0] == b"GET" else OK, unmet):
                async with asyncio.timeout(TIMEOUT_S):
                    assert await asked == b"hi"
        finally:
            await redis.close()


# -- calls that are held back -----------------------------------------------------------------------


def slots_of(port: int) -> bytes:
    """What CLUSTER SLOTS tells where one master has them all."""
    return b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:%d\r\n" % port


@pytest.mark.parametrize("refusal", ["CLUSTERDOWN for a while", "TRYAGAIN later", "ASK 0 127.0.0.1:1"])
async def test_a_call_that_is_held_back_is_not_overtaken(refusal: str) -> None:
    port, seen, executed = free_port(), list[bytes](), list[bytes]()

    def refuse_first(_: int, command: list[bytes]) -> bytes:
        if command[0] == b"CLUSTER":
            return slots_of(port)
        if command[0] != b"SET":
            return OK
        seen.append(command[2])
        if len(seen) == 1:
            return b"-%s\r\n" % refusal.encode()
        executed.append(command[2])
        return OK

    async with scripted_redis(refuse_first, port) as url:
        redis = ClusterRedis([url])
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await redis.wait_connected()
                first = redis.call("SET", "k", "5")
                await wait_until(lambda: seen, TIMEOUT_S)
                await redis.call("GET", "k2")  # the refusal, which came before this answer, is here
                await asyncio.gather(first, redis.call("SET", "k", "6"))
            assert executed == [b"5", b"6"]
        finally:
            await redis.close()


async def test_commands_redirected_with_a_slot_keep_their_order() -> None:
    old, new = free_port(), free_port()
    withheld, executed = list[bytes](), list[bytes]()

    def move(_: int, command: list[bytes]) -> bytes:
        if command[0] == b"SET":
            reply = b"-MOVED 0 127.0.0.1:%d\r\n" % new
        else:
            reply = slots_of(new if withheld else old) if command[0] == b"CLUSTER" else OK
        if not withheld and command[-1] != b"6":
            return reply
        withheld.append(reply)  # from the second call on, slowly
        if command[0] != b"PING":
            return b""
        replies = b"".join(withheld)
        withheld.clear()
        return replies

    def execute(_: int, command: list[bytes]) -> bytes:
        if command[0] == b"SET":
            executed.append(command[2])
        return slots_of(new) if command[0] == b"CLUSTER" else OK

    async with scripted_redis(move, old) as url, scripted_redis(execute, new):
        redis = ClusterRedis([url])
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await redis.wait_connected()
                calls = [redis.call("SET", "k", "5"), redis.call("SET", "k", "6")]
                await wait_until(lambda: ("127.0.0.1", new) in redis._links, TIMEOUT_S)
                calls.append(redis.call("SET", "k", "7"))
                await asyncio.gather(*calls)
            assert executed == [b"5", b"6", b"7"]
        finally:
            await redis.close()


async def test_cancelled_call_does_not_delay_later_ones() -> None:
    port, refused = free_port(), asyncio.Event()

    def refuse_the_first(_: int, command: list[bytes]) -> bytes:
        if command[0] == b"CLUSTER":
            return slots_of(port)
        if command[0] == b"SET" and command[2] == b"5":
            refused.set()
            return b"-CLUSTERDOWN for ever\r\n"
        return OK

    async with scripted_redis(refuse_the_first, port) as url:
        redis = ClusterRedis([url])
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await redis.wait_connected()
                first = redis.call("SET", "k", "5")
                await refused.wait()
                behind = redis.call("SET", "k", "6")
                first.cancel()
                assert await behind == b"OK"
                with pytest.raises(RedisAway, match="CLUSTERDOWN"):
                    await redis.call("SET", "k", "5")
                assert await redis.call("SET", "k", "7") == b"OK"
                assert not redis._held
        finally:
            await redis.close()
