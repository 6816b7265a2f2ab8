"""Rooms while instances are killed: nothing that was said is lost, and every language ends."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import permutations
from pathlib import Path

import aiohttp
import pytest

from dragoman.client import Room, RoomRefused
from dragoman.domain.rooms import Entry, EntryKind
from dragoman.embedded.binary import ServerBinary
from dragoman.embedded.engine import CHOOSE_PORT, RedisServer
from dragoman.store.keys import Keys
from dragoman.tools.processes import InstanceProcess
from support.cluster import Cluster, running
from support.raw_node import Message, RawNode, Work, silent
from support.redis_servers import FIXTURE_OF, LONG_CLUSTER, RedisAt, connected
from support.rooms import (
    FEATURES,
    Member,
    lines_of,
    store_of,
    time_to_end_ms,
    transcript_path,
    translates,
    translation,
)
from support.speech import TIMEOUT_S
from support.waiting import wait_until

TRANSLATE_TIMEOUT_MS = 2000


@pytest.fixture(params=["single", LONG_CLUSTER])
def redis(request: pytest.FixtureRequest) -> RedisAt:
    found: RedisAt = request.getfixturevalue(FIXTURE_OF[request.param])
    return found


class Conversation:
    """Members and nodes on the instances of a cluster, which a test may kill."""

    def __init__(self, cluster: Cluster, stack: AsyncExitStack, http: aiohttp.ClientSession) -> None:
        self.cluster, self._stack, self._http = cluster, stack, http

    async def instance(self, **flags: object) -> InstanceProcess:
        return await self.cluster.instance(
            rooms__translate_timeout_ms=TRANSLATE_TIMEOUT_MS, rooms__captions_per_minute=0, **flags
        )

    async def node(
        self, instance: InstanceProcess, *langs: str, work: Work = translates, recognises: Sequence[str] = ()
    ) -> RawNode:
        pairs = [list(pair) for pair in permutations(langs, 2)]
        node = await RawNode.dial(
            self._http, instance.port, languages=recognises, work=work, features=FEATURES, text_pairs=pairs
        )
        self._stack.push_async_callback(node.close)
        return node

    async def member(self, speaks: str, *instances: InstanceProcess, room: str = "") -> Member:
        urls = [f"ws://127.0.0.1:{one.port}/ws/session" for one in instances]
        opened = Room(
            urls,
            room=room,
            name=speaks,
            speaks=speaks,
            from_start=bool(room),
            audio_format="pcm16",
            sample_rate=16_000,
            vad=False,
        )
        member = Member(opened, speaks)
        await member.room.join()
        reading = asyncio.get_running_loop().create_task(member.read())
        self._stack.push_async_callback(_finish, member, reading)
        return member

    async def log(self, room: str) -> list[Entry]:
        async with connected(self.cluster.redis) as connection:
            return await store_of(connection, Keys(self.cluster.prefix)).read(room, 0, 1000)

    async def check_transcript(self, instance: InstanceProcess, *members: Member) -> None:
        """It is what the members show."""
        for member in members:
            path = transcript_path(member.room.id, member.hears)
            async with self._http.get(f"http://127.0.0.1:{instance.port}{path}") as answer:
                assert member.shown == lines_of(await answer.json()), member.hears

    async def serves(self, instance: InstanceProcess, node: RawNode) -> bool:
        async with self._http.get(f"http://127.0.0.1:{instance.port}/api/v1/cluster") as answer:
            return any(one["node_id"] == node.id for one in (await answer.json())["nodes"])


async def _finish(member: Member, reading: "asyncio.Task[None]") -> None:
    await member.room.leave()
    await asyncio.gather(reading, return_exceptions=True)


@asynccontextmanager
async def conversation(redis: RedisAt, folder: Path) -> AsyncIterator[Conversation]:
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(running(redis, folder))
        no_reuse = aiohttp.TCPConnector(force_close=True)
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=no_reuse))
        yield Conversation(cluster, stack, http)


async def test_reader_whose_instance_is_killed_continues_elsewhere_without_hole_or_duplicate(
    redis: RedisAt, tmp_path: Path
) -> None:
    async with conversation(redis, tmp_path) as talk:
        a, b = await talk.instance(), await talk.instance()
        node = await talk.node(a, "en", "es")
        await wait_until(lambda: talk.serves(b, node), TIMEOUT_S)
        ann = await talk.member("en", a)
        berta = await talk.member("es", b, a, room=ann.room.id)
        for number in range(20):
            await ann.room.write(f"sentence {number}")
            if number == 10:
                b.kill()
        await berta.shows(translation("es", "sentence 19"))
        async with connected(redis) as connection:
            store = store_of(connection, Keys(talk.cluster.prefix))
            log = await store.read(ann.room.id, 0, 1000)
            assert berta.numbers == [entry.seq for entry in log]
            await talk.check_transcript(a, berta, ann)
            # The takeover ends no membership that continues: its session was resumed.
            await wait_until(lambda: _members(store, ann.room.id, 2), TIMEOUT_S)


async def _members(store: object, room: str, count: int) -> bool:
    return len(await store.members(room)) == count  # type: ignore[attr-defined]


async def test_language_ends_as_untranslated_when_the_driving_instance_is_killed_before_its_translation(
    redis: RedisAt, tmp_path: Path
) -> None:
    async with conversation(redis, tmp_path) as talk:
        a, b = await talk.instance(), await talk.instance()
        node = await talk.node(b, "en", "es", work=silent)
        await wait_until(lambda: talk.serves(a, node), TIMEOUT_S)
        berta = await talk.member("es", b)
        ann = await talk.member("en", a, b, room=berta.room.id)
        await ann.room.write("hello")
        await node.job()
        a.kill()
        seen = await berta.until(lambda caption: bool(caption.untranslated))
        assert (seen.text, seen.untranslated) == ("hello", "timeout")
        await ann.until(lambda caption: caption.original == "hello")
        log = await talk.log(berta.room.id)
        assert time_to_end_ms(log, EntryKind.UNTRANSLATED) <= TRANSLATE_TIMEOUT_MS + 1000
        await talk.check_transcript(b, berta, ann)


async def test_member_whose_session_cannot_resume_leaves_when_its_instance_is_killed(
    redis: RedisAt, tmp_path: Path
) -> None:
    async with conversation(redis, tmp_path) as talk:
        a, b = await talk.instance(), await talk.instance()
        berta = await talk.member("es", b)
        old = await talk.cluster.speaker(a, src_lang="en")
        await old.say("room_join", room_id=berta.room.id, room_code=berta.room.code, display_name="Old")
        await old.until(lambda message: message["type"] == "room_create_ack", TIMEOUT_S)
        await wait_until(lambda: berta.room.count == 2, TIMEOUT_S)
        a.kill()
        await wait_until(lambda: berta.room.count == 1, TIMEOUT_S)


# -- Redis -----------------------------------------------------------------------------------------


@pytest.fixture
def mortal(server_binary: ServerBinary, tmp_path: Path) -> Iterator[RedisServer]:
    """A server of this test's own, to be killed."""
    with RedisServer(server_binary, tmp_path / "redis", port=CHOOSE_PORT, fsync="always") as server:
        yield server


async def test_members_read_on_when_redis_was_killed_and_restarted(mortal: RedisServer, tmp_path: Path) -> None:
    async with conversation(RedisAt("single", (mortal.tcp_url,), server=mortal), tmp_path) as talk:
        a, b = await talk.instance(), await talk.instance()
        node = await talk.node(a, "en", "es")
        await wait_until(lambda: talk.serves(b, node), TIMEOUT_S)
        ann = await talk.member("en", a)
        berta = await talk.member("es", b, room=ann.room.id)
        await ann.room.write("before")
        await berta.shows(translation("es", "before"))
        await asyncio.to_thread(mortal.kill)
        await wait_until(a.is_not_ready, TIMEOUT_S)
        await asyncio.to_thread(mortal.start)
        for instance in (a, b):
            await wait_until(instance.is_ready, TIMEOUT_S)
        await ann.room.write("after")
        await berta.shows(translation("es", "after"))
        assert (ann.room.complete, berta.room.complete) == (True, True)
        assert berta.numbers == [entry.seq for entry in await talk.log(ann.room.id)]
        await talk.check_transcript(b, ann, berta)


async def test_members_are_informed_when_redis_comes_back_without_its_data(mortal: RedisServer, tmp_path: Path) -> None:
    async with conversation(RedisAt("single", (mortal.tcp_url,), server=mortal), tmp_path) as talk:
        a, b = await talk.instance(), await talk.instance()
        ann = await talk.member("en", a)
        berta = await talk.member("en", b, room=ann.room.id)
        await ann.room.write("before")
        await berta.shows("before")
        await asyncio.to_thread(mortal.kill)
        shutil.rmtree(mortal.data_dir / "appendonlydir")
        await asyncio.to_thread(mortal.start)
        for member in (ann, berta):
            await wait_until(lambda: _is_informed(member), TIMEOUT_S)  # noqa: B023


async def _is_informed(member: Member) -> bool:
    try:
        await member.room.write("after")
    except RoomRefused as error:
        return error.code in ("ROOM_NOT_FOUND", "SESSION_CLOSED")  # refused when it joined again, or expired
    return False


# -- speech ----------------------------------------------------------------------------------------


async def test_everybody_has_a_caption_or_its_loss_when_a_speaker_cannot_resume_and_its_instance_is_killed(
    redis: RedisAt, tmp_path: Path
) -> None:
    spoken = 8

    async def answers_some(node: RawNode, job: Message) -> None:
        """Nothing until all are there: the instance is killed among the results."""
        if job["utterance_index"] == spoken - 1:
            for each in node.jobs[: spoken // 2]:
                await node.answer(each, text_asr=f"said {each['utterance_index']}", text_translated="")
            asyncio.get_running_loop().call_later(0.005, a.kill)

    async with conversation(redis, tmp_path) as talk:
        a, b = await talk.instance(), await talk.instance()
        node = await talk.node(b, work=answers_some, recognises=["en"])
        await wait_until(lambda: talk.serves(a, node), TIMEOUT_S)
        readers = [await talk.member("en", b)]
        readers.append(await talk.member("es", b, room=readers[0].room.id))
        old = await talk.cluster.speaker(a, src_lang="en", tgt_lang="en")
        await old.say("room_join", room_id=readers[0].room.id, room_code=readers[0].room.code)
        await old.until(lambda message: message["type"] == "room_create_ack", TIMEOUT_S)
        for number in range(spoken):
            await old.chunk(number, final=True)
        for reader in readers:
            await wait_until(lambda: len({one.id for one in reader.received}) == spoken, TIMEOUT_S, "every caption")  # noqa: B023
        async with connected(redis) as connection:
            log = await store_of(connection, Keys(talk.cluster.prefix)).read(readers[0].room.id, 0, 1000)
        originals = [entry for entry in log if entry.is_original]
        assert sorted(entry.caption for entry in originals) == [f"{old.session_id}:u{at}" for at in range(spoken)]
        lost = [entry for entry in originals if entry.kind is EntryKind.LOST]
        assert len(lost) >= spoken // 2
        assert {entry.text for entry in lost} == {"instance_lost"}
        await talk.check_transcript(b, readers[0])
        await wait_until(lambda: readers[0].room.count == 2, TIMEOUT_S)


@pytest.mark.long
async def test_utterance_is_one_caption_when_the_instance_of_a_speaker_that_can_resume_is_killed(
    redis: RedisAt, tmp_path: Path
) -> None:
    held: list[Message] = []
    async with conversation(redis, tmp_path) as talk:
        a, b = await talk.instance(), await talk.instance()
        node = await talk.node(b, work=lambda _, job: held.append(job), recognises=["en"])
        await wait_until(lambda: talk.serves(a, node), TIMEOUT_S)
        berta = await talk.member("en", b)
        ann = await talk.member("en", a, b, room=berta.room.id)
        await ann.room.send(b"\x00\x20\x00\xe0" * 4000, final=True)
        await node.job()
        a.kill()
        await wait_until(lambda: ann.room.socket is not None, TIMEOUT_S)
        await ann.room.send(b"\x00\x20\x00\xe0" * 4000, final=True)
        await node.job(2)
        for job in held:
            await node.answer(job, text_asr=f"said {job['utterance_index']}", text_translated="")
        for number in range(2):
            await berta.shows(f"said {number}")
        assert sorted(berta.texts) == ["said 0", "said 1"]


async def test_utterance_is_recognised_elsewhere_when_its_node_is_killed(redis: RedisAt, tmp_path: Path) -> None:
    async def recognises(node: RawNode, job: Message) -> None:
        await node.answer(job, text_asr="said", text_translated="")

    async with conversation(redis, tmp_path) as talk:
        a, b = await talk.instance(), await talk.instance()
        doomed = await talk.node(a, work=silent, recognises=["en"])
        berta = await talk.member("en", b)
        ann = await talk.member("en", a, room=berta.room.id)
        await ann.room.send(b"\x00\x20\x00\xe0" * 4000, final=True)
        await doomed.job()
        heir = await talk.node(b, work=recognises, recognises=["en"])
        await wait_until(lambda: talk.serves(a, heir), TIMEOUT_S)
        doomed.die()
        await berta.shows("said")
        assert berta.texts == ["said"]
        retries = await a.metric("dragoman_failovers_total{reason=node_lost}")
        assert (len(doomed.jobs) + len(heir.jobs), retries) == (1 + retries, 1)


@pytest.mark.long
async def test_utterance_is_lost_when_its_instance_is_killed_and_its_session_is_not_resumed_in_time(
    redis: RedisAt, tmp_path: Path
) -> None:
    async with conversation(redis, tmp_path) as talk:
        a, b = [await talk.instance(speech__resume_grace_s=1) for _ in range(2)]
        node = await talk.node(b, work=silent, recognises=["en"])
        await wait_until(lambda: talk.serves(a, node), TIMEOUT_S)
        berta = await talk.member("en", b)
        old = await talk.cluster.speaker(a, src_lang="en", tgt_lang="en", resume=True)
        await old.say("room_join", room_id=berta.room.id, room_code=berta.room.code)
        await old.until(lambda message: message["type"] == "room_create_ack", TIMEOUT_S)
        await old.chunk(0, final=True)
        await node.job()
        a.kill()
        assert (await berta.until(lambda caption: bool(caption.lost))).lost == "left"
        await wait_until(lambda: berta.room.count == 1, TIMEOUT_S)
