"""The store without a Redis: what its modules compute, and how they report errors."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from redis.crc import key_slot

from dragoman.domain.fleet import Node
from dragoman.store.chat.shards import Shards, StreamNames
from dragoman.store.chat.users import Users
from dragoman.store.errors import RedisAway, Refused, StoreError, UnknownOutcome
from dragoman.store.inbox import InboxCounts, InboxEntry, Inboxes, InboxSettings
from dragoman.store.instances import Instances, Owners, Presence
from dragoman.store.interface import SLICE, in_slices
from dragoman.store.jobs import Binding, Jobs
from dragoman.store.keys import Keys
from dragoman.store.link import Address, ErrorReply, refusal
from dragoman.store.nodes import VERSION, Reserved, ReserveReply, Snapshot, parse_snapshot
from dragoman.store.ops import BOUNDS_S, Ops
from dragoman.store.redis import Redis, slot_of
from support.tables import for_each


def test_all_that_can_go_wrong_is_one_tree() -> None:
    assert all(issubclass(error, StoreError) for error in (RedisAway, UnknownOutcome, Refused))


def test_errors_say_whether_the_call_may_have_run() -> None:
    assert not issubclass(UnknownOutcome, RedisAway)
    assert not issubclass(RedisAway, UnknownOutcome)


def test_refusal_has_its_error_code() -> None:
    assert Refused("WRONGTYPE Operation against a key").word == "WRONGTYPE"
    assert Refused("").word == ""


def test_an_entry_is_read_back_from_its_fields() -> None:
    fields = [b"v", b"1", b"type", b"job_assign", b"trace_id", b"t", b"size", b"4", b"data", b"\x00\xff{}"]
    assert InboxEntry.parse(b"5-0", fields) == InboxEntry("5-0", "job_assign", b"\x00\xff{}", "t", 4)


def test_an_entry_of_a_later_release_says_so() -> None:
    entry = InboxEntry.parse(b"5-0", [b"v", b"2", b"type", b"job_assign", b"data", b"x"])
    assert entry.newer
    assert entry.kind == "job_assign"


@for_each(
    [
        None,
        [],
        [b"type", b"job_assign", b"data", b"x"],
        [b"v", b"one", b"type", b"job_assign", b"data", b"x"],
        [b"v", b"0", b"type", b"job_assign", b"data", b"x"],
        [b"v", b"1", b"type", b"job_assign"],
        [b"v", b"1", b"data", b"x"],
        [b"v", b"1", b"type", b"\xff\xfe", b"data", b"x"],
        [b"v", b"1", b"type", b"job_assign", b"size", b"big", b"data", b"x"],
        [b"v", b"1", b"type", b"job_assign", b"data"],
    ]
)
def test_unreadable_entry_has_no_kind(fields: list[bytes] | None) -> None:
    entry = InboxEntry.parse(b"5-0", fields)
    assert entry.kind == ""
    assert entry.id == "5-0"
    assert not entry.newer


def test_a_tally_balances_when_all_that_came_is_done_dead_or_waiting() -> None:
    assert InboxCounts().balanced
    assert InboxCounts(added=6, done=3, dead=1, waiting=2).balanced
    assert not InboxCounts(added=6, done=3, dead=1, waiting=1).balanced


def test_presence_carries_its_incarnation_and_survives_the_way_through_json() -> None:
    told = Presence("i1", "a1", host="h", pid=7, draining=True)
    assert Instances.parse(msgspec.json.encode(told)) == told


@for_each([None, b"", b"{", b"alive", b"\xff\xfe", b'{"instance":"\xff","incarnation":"a"}'])
def test_a_presence_that_is_not_there_or_does_not_parse_is_none(data: bytes | None) -> None:
    assert Instances.parse(data) is None


def test_a_binding_survives_the_way_through_json_with_its_version() -> None:
    data = msgspec.json.encode(Binding("j1", "i1"))
    assert Jobs.parse_binding(data) == Binding("j1", "i1")
    assert b'"v":1' in data


@for_each([None, b"", b"{", b"j1", b'{"job_id":"j1"}', b"\xff", b'{"job_id":"\xff","driver":"i"}'])
def test_no_binding_or_one_that_does_not_parse_is_none(data: bytes | None) -> None:
    assert Jobs.parse_binding(data) is None


@for_each(
    [
        ("redis://example.org", Address("example.org", 6379)),
        ("redis://example.org:7000/3", Address("example.org", 7000, db=3)),
        ("redis://example.org:7000?db=3", Address("example.org", 7000, db=3)),
        ("redis://", Address("127.0.0.1", 6379)),
        ("redis://:s%40crt@example.org/", Address("example.org", 6379, password="s@crt")),
        ("redis://us%3Aer:p%2Fw@h:1", Address("h", 1, username="us:er", password="p/w")),
        ("redis://[::1]:7001", Address("::1", 7001)),
        ("rediss://example.org", Address("example.org", 6379, tls=True)),
        ("unix:///run/re%20dis.sock", Address(path="/run/re dis.sock")),
        ("unix://me:pw@/run/redis.sock?db=2", Address(path="/run/redis.sock", username="me", password="pw", db=2)),
    ]
)
def test_an_address_is_read_from_a_url_as_redis_py_writes_it(url: str, address: Address) -> None:
    assert Address.parse(url) == address


@for_each(["http://example.org", "example.org:6379", "", "/run/redis.sock"])
def test_invalid_redis_url_is_refused_with_a_sentence(url: str) -> None:
    with pytest.raises(ValueError, match="a Redis URL starts with"):
        Address.parse(url)


@pytest.mark.parametrize("url", ["redis://h:port", "redis://h/first"])
def test_a_port_or_database_that_is_no_number_is_refused(url: str) -> None:
    with pytest.raises(ValueError):
        Address.parse(url)


def test_a_password_is_never_shown() -> None:
    assert "hunter2" not in repr(Address.parse("redis://:hunter2@h"))


def test_another_server_of_the_same_cluster_takes_the_same_credentials() -> None:
    there = Address.parse("rediss://me:pw@h:1/4").at("other", 2)
    assert there == Address("other", 2, username="me", password="pw", tls=True), "a Cluster has one database only"


def test_an_address_is_named_by_its_path_or_by_host_and_port() -> None:
    assert Address.parse("unix:///run/redis.sock").name == "/run/redis.sock"
    assert Address.parse("redis://h:7").name == "h:7"


@for_each(["LOADING", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "TRYAGAIN", "BUSY"])
def test_server_that_cannot_work_now_counts_as_an_outage(word: str) -> None:
    assert isinstance(refusal(ErrorReply(f"{word} for whatever reason")), RedisAway)


@for_each(["ERR unknown command", "WRONGTYPE Operation against …", "BUSYGROUP exists", "NOAUTH"])
def test_other_error_is_a_refusal_with_its_code(text: str) -> None:
    error = refusal(ErrorReply(text))
    assert isinstance(error, Refused)
    assert error.word == text.split(" ")[0]


FULL = Snapshot(
    id="n1",
    epoch=7,
    instance="i1",
    slots=4,
    asr=["de", "en"],
    semantic=["en"],
    tts=["en"],
    ready=["asr"],
    features=["job_ack"],
    gpu_queue=2,
    running=3,
    draining=True,
    public=False,
    tenant="acme",
    version="1.2",
    platform="linux",
    seen_ms=99,
)


@pytest.mark.parametrize("snapshot", [FULL, Snapshot("n1", 1, "i1")])
def test_a_snapshot_survives_the_way_through_json(snapshot: Snapshot) -> None:
    assert parse_snapshot(msgspec.json.encode(snapshot)) == snapshot


def test_a_snapshot_becomes_the_node_that_placement_knows() -> None:
    assert FULL.node() == Node(
        id="n1",
        epoch=7,
        instance="i1",
        slots=4,
        asr=frozenset({"de", "en"}),
        semantic=frozenset({"en"}),
        tts=frozenset({"en"}),
        ready=frozenset({"asr"}),
        features=frozenset({"job_ack"}),
        gpu_queue=2,
        running=3,
        draining=True,
        public=False,
        tenant="acme",
        seen_ms=99,
    )
    assert Snapshot("n1", 1, "i1").node().ready is None, "not told is not the same as nothing ready"


@for_each(
    [b"", b"{", b"[]", b'"x"', b"\xff\xfe", b'{"id":"\xff","epoch":1,"instance":"i"}', b'{"id":"n1"}', b'{"id":1}']
)
def test_unparsable_record_is_none(data: bytes) -> None:
    assert parse_snapshot(data) is None


def test_a_snapshot_of_a_later_release_is_left_for_a_newer_instance() -> None:
    assert parse_snapshot(msgspec.json.encode(Snapshot("n1", 1, "i1", v=VERSION + 1))) is None


def test_fields_of_a_later_release_within_the_same_version_are_ignored() -> None:
    assert parse_snapshot(b'{"id":"n1","epoch":1,"instance":"i1","colour":"red"}') == Snapshot("n1", 1, "i1")


def exposed(ops: Ops) -> list[str]:
    registry = CollectorRegistry()
    registry.register(ops)
    return generate_latest(registry).decode().splitlines()


def test_operations_are_counted_by_name_and_result() -> None:
    ops = Ops()
    ops["GET"].answered(0.001)
    ops["GET"].answered(0.002)
    ops["push"].failed(RedisAway("away"))
    ops["push"].failed(UnknownOutcome("lost"))
    ops["push"].failed(Refused("ERR no"))
    lines = exposed(ops)
    assert 'scheduler_phase2_redis_op_total{op="GET",result="ok"} 2.0' in lines
    assert 'scheduler_phase2_redis_op_total{op="push",result="away"} 1.0' in lines
    assert 'scheduler_phase2_redis_op_total{op="push",result="unknown"} 1.0' in lines
    assert 'scheduler_phase2_redis_op_total{op="push",result="error"} 1.0' in lines


def test_a_result_that_never_happened_is_not_shown() -> None:
    ops = Ops()
    ops["GET"].answered(0.001)
    assert not any('result="away"' in line for line in exposed(ops))


def test_a_duration_on_a_bound_counts_as_within_it_and_the_last_bucket_holds_all() -> None:
    ops = Ops()
    for seconds in (0.0, BOUNDS_S[0], 0.2, 99.0):
        ops["GET"].answered(seconds)
    lines = exposed(ops)
    assert 'dragoman_redis_op_seconds_bucket{le="0.0001",op="GET"} 2.0' in lines
    assert 'dragoman_redis_op_seconds_bucket{le="0.1",op="GET"} 2.0' in lines
    assert 'dragoman_redis_op_seconds_bucket{le="0.5",op="GET"} 3.0' in lines
    assert 'dragoman_redis_op_seconds_bucket{le="+Inf",op="GET"} 4.0' in lines
    assert 'dragoman_redis_op_seconds_count{op="GET"} 4.0' in lines


def test_an_operation_keeps_one_tally() -> None:
    ops = Ops()
    assert ops["GET"] is ops["GET"]
    assert ops["GET"] is not ops["SET"]


@for_each(
    [
        ("123456789", 0x31C3),  # the check value of CRC16/XMODEM
        ("", 0),
        ("foo", 12182),
        ("bar", 5061),
        ("hello", 866),
        ("{user1000}.following", 3443),
        ("{user1000}.followers", 3443),
        ("foo{}{bar}", 8363),
        ("foo{{bar}}zap", 4015),
        ("foo{bar}{zap}", 5061),
    ]
)
def test_slots_are_those_of_the_cluster_specification(key: str, slot: int) -> None:
    assert slot_of(key) == slot


@for_each(["é", "P:jobs:{job:ümlaut}:fsm", "{日本}x", "a" * 500])
def test_slots_agree_with_redis_py(key: str) -> None:
    assert slot_of(key) == key_slot(key.encode())


KEYS = Keys("t")
NAMES = StreamNames("accepted", "to_save", "deliver", "save")


class Away:
    """Takes every question, and answers none but which names there are."""

    get_each = Redis.get_each

    def call(self, *command: Any) -> "asyncio.Future[Any]":
        future = asyncio.get_running_loop().create_future()
        if command[0] == "SMEMBERS":
            future.set_result([b"a", b"b", b"c"])
        else:
            future.set_exception(RedisAway("the connection was lost"))
        return future


ASKING: dict[str, Callable[[Redis], Awaitable[object]]] = {
    "who is where": lambda redis: Users(redis, KEYS, 1000).owners([1, 2, 3]),
    "the account of an inbox": lambda redis: Inboxes(redis, KEYS, InboxSettings()).counts("a"),
    "who lives": lambda redis: Instances(redis, KEYS).all(),
    "what a shard has done": lambda redis: Shards(redis, KEYS, NAMES, 2, 1000).status(0),
}


async def test_lost_connection_is_reported_once() -> None:
    forgotten = list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: forgotten.append(context))
    for ask in ASKING.values():
        with pytest.raises(StoreError):
            await ask(cast(Redis, Away()))
    gc.collect()
    assert forgotten == []


@for_each(
    [
        (b"OK", Reserved(ReserveReply.OK)),
        (b"HELD", Reserved(ReserveReply.HELD)),
        (b"FULL 1500", Reserved(ReserveReply.FULL, 1500)),
        (b"FULL 0", Reserved(ReserveReply.FULL, 0)),
    ]
)
def test_verdict_has_a_code_and_the_time_until_a_slot_can_expire(reply: bytes, reserved: Reserved) -> None:
    assert Reserved.parse(reply) == reserved


def test_unknown_verdict_is_an_error() -> None:
    with pytest.raises(ValueError):
        Reserved.parse(b"MAYBE")


MANY = 5 * SLICE + 1


class Counting:
    """A Redis that forgot everything: each call is answered a turn later, and it notes how many waited at once."""

    def __init__(self) -> None:
        self.waiting = self.most = self.calls = 0

    def call(self, *_: Any) -> "asyncio.Future[Any]":
        return self._answer(b"OK")

    def evaluate(self, *_: Any) -> "asyncio.Future[Any]":
        return self._answer(b"NONE")

    def _answer(self, reply: bytes) -> "asyncio.Future[Any]":
        self.calls += 1
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        future = asyncio.get_running_loop().create_future()

        def answered() -> None:
            self.waiting -= 1
            future.set_result(reply)

        asyncio.get_running_loop().call_soon(answered)
        return future


async def test_answers_come_in_order_and_a_slice_at_a_time() -> None:
    redis = Counting()

    async def ask(number: int) -> int:
        await redis.call()
        return -number

    assert await in_slices(range(MANY), ask) == [-number for number in range(MANY)]
    assert redis.most == SLICE


async def test_owners_of_sessions_are_renewed_a_slice_at_a_time() -> None:
    redis: Any = Counting()
    await Owners(redis, Keys("t"), 1000).renew("here", ["node"], [f"session-{number}" for number in range(MANY)])
    assert (redis.calls, redis.most) == (2 * (MANY + 1), SLICE)  # kept, and written again


async def test_every_slice_is_asked_although_one_call_fails() -> None:
    """In a Cluster one master may be unavailable."""
    asked = list[int]()

    async def ask(number: int) -> None:
        asked.append(number)
        if number in (1, SLICE + 1):
            raise ValueError(number)

    with pytest.raises(ValueError, match=r"^1$"):
        await in_slices(range(MANY), ask)
    assert asked == list(range(MANY))
