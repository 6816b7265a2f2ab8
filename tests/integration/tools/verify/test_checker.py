"""The checker on a real run: all is well, and then not, because somebody has been at the stores."""

import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dragoman.archive.archive import sqlite_path
from dragoman.embedded.binary import ServerBinary
from dragoman.tools.verify.check import Verdict, judge
from dragoman.tools.verify.clients import Clients, Ledgers
from dragoman.tools.verify.environment import Environment, Setup
from dragoman.tools.verify.facts import gather
from dragoman.tools.verify.recordings import EventFile, Kind, read
from dragoman.tools.verify.room_ledger import Received
from support.waiting import wait_until

TIMEOUT_S = 60.0


@dataclass
class Run:
    """A cluster at rest, after people have used it."""

    environment: Environment
    ledgers: Ledgers
    began: float

    async def verdict(self, timeout_s: float = 0.0) -> Verdict:
        chat, speech, rooms = self.ledgers.chat, self.ledgers.speech, self.ledgers.rooms
        facts = await gather(self.environment.stores, speech.sessions, self.began, timeout_s, rooms)
        events = read(self.environment.recording_files)
        return judge(chat, speech, events, facts, rules=self.environment.rules(disturbed=False), rooms=rooms)

    async def kinds(self) -> Counter[str]:
        return Counter(finding.kind for finding in (await self.verdict()).findings)


@asynccontextmanager
async def used(binary: ServerBinary, folder: Path) -> AsyncIterator[Run]:
    setup, began = Setup(), time.monotonic()
    async with Environment.open(setup, "always", binary, folder) as environment:
        counts = (setup.speakers, setup.chat_users, setup.room_members)
        async with Clients.open(environment.ports, 1, *counts) as clients:
            ledgers = clients.begin()
            await clients.rooms.open()
            clients.start(setup.messages_per_s, setup.utterances_per_s, setup.captions_per_s)
            await wait_until(lambda: _talked(ledgers), TIMEOUT_S, "some talk")
            await clients.stop()
            assert await clients.settle(TIMEOUT_S) == []
            yield Run(environment, ledgers, began)


def _talked(ledgers: Ledgers) -> bool:
    answers = sum(len(one.answers) for one in ledgers.speech.sessions.values())
    return answers >= 20 and len(ledgers.chat.entries) >= 50 and ledgers.rooms.promised >= 10


async def a_row_disappears(run: Run) -> None:
    with closing(sqlite3.connect(sqlite_path(run.environment.database), isolation_level=None)) as db:
        db.execute("DELETE FROM message WHERE id = (SELECT max(id) FROM message)")


async def a_row_nobody_sent_appears(run: Run) -> None:
    with closing(sqlite3.connect(sqlite_path(run.environment.database), isolation_level=None)) as db:
        db.execute("UPDATE message SET client_msg_id = 'another' WHERE id = (SELECT min(id) FROM message)")


async def a_slot_stays_taken(run: Run) -> None:
    later_ms = int(time.time() * 1000) + 600_000
    await run.environment.redis.call("ZADD", run.environment.keys.reserved("n1"), later_ms, "job-of-nobody")


async def a_turn_leaves_its_key(run: Run) -> None:
    await run.environment.redis.call("HSET", run.environment.keys.turn("t-of-nobody"), "affinity_node_id", "n1")


async def an_inbox_entry_is_unaccounted_for(run: Run) -> None:
    await run.environment.redis.call("HINCRBY", run.environment.keys.counts("v1"), "added", 1)


async def a_job_loses_its_outcome(run: Run) -> None:
    spoken = next(one for one in run.ledgers.speech.sessions.values() if one.answers)
    await run.environment.redis.call("HDEL", run.environment.keys.job(spoken.answers[0].job), "outcome")


async def an_attempt_is_started_again(run: Run) -> None:
    path = run.environment.recording_files[0]
    file = EventFile(path)
    file.write(next(event for event in read([path]) if event.kind is Kind.STARTED))
    file.close()


async def a_result_gets_lost_on_its_way(run: Run) -> None:
    spoken = next(one for one in run.ledgers.speech.sessions.values() if one.answers)
    spoken.answers.pop()


async def a_log_loses_an_entry(run: Run) -> None:
    redis, log = run.environment.redis, run.environment.keys.room_log(run.ledgers.rooms.room)
    ((first, _),) = await redis.call("XRANGE", log, "-", "+", "COUNT", 1)
    await redis.call("XDEL", log, first)


async def a_session_stays_in_its_room(run: Run) -> None:
    key = run.environment.keys.room_members(run.ledgers.rooms.room)
    member = msgspec.json.decode((await run.environment.redis.call("HVALS", key))[0])
    gone = msgspec.json.encode({**member, "session": "s-of-nobody"})
    await run.environment.redis.call("HSET", key, "s-of-nobody", gone)


async def an_entry_of_a_room_gets_lost_on_its_way(run: Run) -> None:
    events = next(one.events for one in run.ledgers.rooms.members if not one.is_over)
    events.remove(next(event for event in reversed(events) if isinstance(event, Received)))


PLANTED: dict[Callable[[Run], Awaitable[None]], str] = {
    a_row_disappears: "false saved",
    a_row_nobody_sent_appears: "unknown origin",
    a_slot_stays_taken: "slot leak",
    a_turn_leaves_its_key: "key leak",
    an_inbox_entry_is_unaccounted_for: "account",
    a_job_loses_its_outcome: "no outcome",
    an_attempt_is_started_again: "started twice",
    a_result_gets_lost_on_its_way: "lost",
    an_entry_of_a_room_gets_lost_on_its_way: "lost",
    a_log_loses_an_entry: "gap",
    a_session_stays_in_its_room: "outlived",
}


async def test_healthy_run_is_clean_until_its_stores_are_manipulated(
    server_binary: ServerBinary, tmp_path: Path
) -> None:
    async with used(server_binary, tmp_path) as run:
        verdict = await run.verdict(TIMEOUT_S)
        assert verdict.findings == ()
        assert verdict.promised == verdict.kept > 70
        for plant, kind in PLANTED.items():
            before = await run.kinds()
            await plant(run)
            assert (await run.kinds())[kind] > before[kind], plant.__name__
