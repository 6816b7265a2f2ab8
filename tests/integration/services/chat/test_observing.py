"""What operators can see of chat: perf lines, gauges and the fields of an entry, with a real Redis."""

import json
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from dragoman.archive import Archive, NewMessage
from dragoman.protocol.chat import decode_frame
from dragoman.services.chat.report import Perf
from dragoman.services.chat.save_stage import ShardLease
from dragoman.services.chat.shard_assigner import OwnedShard, ShardAssigner
from dragoman.services.loops import Tasks
from dragoman.services.metrics import Metrics
from dragoman.services.routing.router import Announcer
from dragoman.store.chat.entries import AcceptReply, ChatEntry
from dragoman.store.chat.shards import Shards, StreamNames
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from integration.services.chat.in_process_chat import InProcessChat, Socket

SENDER, RECEIVER = 7, 9
ROW = NewMessage(5, "n", SENDER, RECEIVER, "TEXT", "hi", 1)


async def at_work(redis: Redis, keys: Keys) -> Shards:
    """Three messages were accepted, and one is left in the second stream by an earlier release."""
    stream = f"{keys.im}:stream:single_chat"
    made = Shards(redis, keys, StreamNames(f"{stream}:accepted", f"{stream}:to_save", "deliver", "save"), 1, 600_000)
    await made.take_lease(0, "i", 0, 600_000)
    for id in (1, 2, 3):
        entry = ChatEntry("", id, f"m{id}", SENDER, RECEIVER, "TEXT", "hi", 1, 1, "i", "save_first")
        assert (await made.accept(entry, "digest", 100))[0] is AcceptReply.OK
    await redis.call("XADD", made.to_save(0), "*", *entry.fields())
    return made


async def test_accept_line_has_the_times_and_the_length_and_pending_entries_of_the_stream(
    redis: Redis, keys: Keys
) -> None:
    shards = await at_work(redis, keys)
    tasks = Tasks()
    with capture_logs() as logs:
        perf = Perf(Metrics(), shards, tasks, lambda: True)
        perf.accepted(ROW, came_at=monotonic() - 0.02, wrote_s=0.0123, queue=4)
        await tasks.settled()
    (line,) = logs
    assert line["event"] == "ws_perf single_chat_accept"
    assert (line["acceptedWriteMs"], line["streamLen"], line["pending"], line["queue"]) == (12.3, 3, 3, 4)
    assert line["acceptedAckMs"] >= 20


@pytest.mark.parametrize(
    ("is_sampled", "age_s", "lines"), [(True, 0.0, 1), (False, 0.0, 0), (False, 1.0, 1)], ids=["sampled", "not", "slow"]
)
async def test_perf_lines_are_written_for_a_sample_and_for_slow_messages(
    redis: Redis, keys: Keys, is_sampled: bool, age_s: float, lines: int
) -> None:
    shards = await at_work(redis, keys)
    tasks, metrics = Tasks(), Metrics()
    perf = Perf(metrics, shards, tasks, lambda: is_sampled)
    with capture_logs() as logs:
        now = monotonic()
        perf.accepted(ROW, came_at=now - age_s, wrote_s=0.001, queue=0)
        perf.saved(ROW, came_at=now - age_s, asked=now, began=now, saved=now)
        await tasks.settled()
    assert sorted(line["event"] for line in logs) == ["ws_perf single_chat", "ws_perf single_chat_accept"] * lines
    assert sum(metrics.chat_accept_ack.buckets) == sum(metrics.chat_db_queue.buckets) == 1


async def test_save_line_tells_the_wait_for_the_database_from_its_own_time(redis: Redis, keys: Keys) -> None:
    shards = await at_work(redis, keys)
    with capture_logs() as logs:
        came = monotonic() - 10
        perf = Perf(Metrics(), shards, Tasks(), lambda: True)
        perf.saved(ROW, came_at=came, asked=came + 1, began=came + 3, saved=came + 6)
    (line,) = logs
    assert (line["queueMs"], line["dbQueueMs"], line["saveMsgMs"]) == (1000, 2000, 3000)
    assert line["pushMs"] >= 4000


async def test_streams_are_not_asked_for_their_length_for_each_of_many_slow_messages(redis: Redis, keys: Keys) -> None:
    shards = await at_work(redis, keys)
    tasks = Tasks()
    perf = Perf(Metrics(), shards, tasks, lambda: True)
    with capture_logs() as logs:
        for _ in range(100):
            perf.accepted(ROW, came_at=0.0, wrote_s=0.001, queue=0)
        await tasks.settled()
    assert len(logs) == 100
    assert sum("streamLen" in line for line in logs) <= 61


async def test_gauges_show_the_length_of_both_streams_and_what_is_in_hand(redis: Redis, keys: Keys) -> None:
    shards = await at_work(redis, keys)
    metrics, nothing = Metrics(), cast(Any, None)
    announcer = cast(Announcer, type("Deaf", (), {"subscribe": lambda self, heard: None})())
    assigner = ShardAssigner("i", shards, cast(Archive, None), nothing, announcer, metrics, nothing, nothing, ttl_s=5.0)
    lease = ShardLease(0, "i", 1, inf, shards.accepted(0))
    lease.has_in_hand(2)
    assigner._owned[0] = OwnedShard(lease, nothing)
    await assigner.measure()
    gauges = {
        (name, stream): gauge.labels(stream, "0").value
        for name, gauge in (("XLEN", metrics.chat_stream), ("in hand", metrics.chat_pending))
        for stream in ("accepted", "to_save")
    }
    assert gauges == {
        ("XLEN", "accepted"): 3,
        ("in hand", "accepted"): 2,
        ("XLEN", "to_save"): 1,
        ("in hand", "to_save"): 0,
    }
    assert metrics.chat_backlog.labels("0").value == 3
    del assigner._owned[0]
    await assigner.measure()
    assert metrics.chat_stream.labels("accepted", "0").value == 0, "another instance works it, and shows it"


async def test_send_ts_of_an_entry_is_that_of_the_client_or_else_the_time_of_acceptance(
    redis: Redis, keys: Keys, tmp_path: Path
) -> None:
    chat = InProcessChat("i1", 1, redis, keys, tmp_path / "chat.sqlite3", enabled=True, rollout_percent=100)
    outbound = chat.admission.outbound(await chat.come_in(SENDER, Socket(1)))
    for name, ts in (("a", 1234), ("b", "1235"), ("c", None), ("d", {"no": "number"})):
        said = {"type": "SINGLE_CHAT", "clientMsgId": name, "to": RECEIVER, "body": "hi", "ts": ts}
        outbound.take(decode_frame(json.dumps(said).encode()))
    await chat.tasks.settled()
    rows = await redis.call("XRANGE", chat.shards.accepted(0), "-", "+")
    texts = [dict(zip(fields[::2], fields[1::2], strict=True)) for _, fields in rows]
    assert [text[b"sendTs"] for text in texts[:2]] == [b"1234", b"1235"]
    assert all(text[b"sendTs"] == text[b"createdAtMs"] for text in texts[2:])
    assert len(texts) == 4
    await chat.close()
