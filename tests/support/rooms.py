"""Rooms for tests: members that record, a node that translates texts, and the comparison of both with the log."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any
from uuid import uuid4

from dragoman.client import Room, RoomCaption
from dragoman.domain.rooms import Entry, EntryKind
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.store.rooms.rooms import RoomBounds, Rooms
from support.raw_node import Message, RawNode, Work
from support.speech import TIMEOUT_S, Harness, Scenario, new_scenario
from support.waiting import wait_until

FEATURES = ("job_ack", "text_jobs", "reattempt", "slots:8")


async def translates(node: RawNode, job: Message) -> None:
    await node.answer(job, text_asr="", text_translated=translation(job["tgt_lang"], job["text"]))


def translation(lang: str, text: str) -> str:
    """As the node of these tests translates."""
    return f"[{lang}] {text}"


async def translator(
    scenario: Scenario, langs: Sequence[str], at: int = 0, work: Work = translates, **options: Any
) -> RawNode:
    pairs = [list(pair) for pair in permutations(langs, 2)]
    return await scenario.node(at, work=work, features=FEATURES, languages=(), text_pairs=pairs, **options)


@dataclass
class Member:
    """A member that records every caption it receives."""

    room: Room
    hears: str
    received: list[RoomCaption] = field(default_factory=list)

    @property
    def numbers(self) -> list[int]:
        return [caption.seq for caption in self.received]

    @property
    def shown(self) -> dict[str, str]:
        """What it shows of each caption in the end."""
        return {caption.id: caption.text for caption in self.received}

    @property
    def texts(self) -> list[str]:
        return [caption.text for caption in self.received]

    async def read(self) -> None:
        async for caption in self.room:
            self.received.append(caption)

    async def until(self, wanted: Callable[[RoomCaption], bool]) -> RoomCaption:
        await wait_until(lambda: any(map(wanted, self.received)), TIMEOUT_S, f"{wanted} of {self.texts}")
        return next(filter(wanted, self.received))

    async def shows(self, text: str) -> RoomCaption:
        return await self.until(lambda caption: caption.text == text)


class Gathering:
    """The members of one room, and its log."""

    def __init__(self, scenario: Scenario, stack: AsyncExitStack) -> None:
        self._scenario, self._stack = scenario, stack
        self.id = ""
        self.members: list[Member] = []
        self.store = Rooms(scenario.redis, scenario.keys, RoomBounds())

    def url(self, at: int) -> str:
        return f"ws://127.0.0.1:{self._scenario.harness.instances[at].port}/ws/session"

    async def join(self, speaks: str, *instances: int, **options: Any) -> Member:
        """Join the room of the first member, from the start of its log."""
        urls = [self.url(at) for at in instances or (0,)]
        named: dict[str, Any] = {"name": f"member {len(self.members)}", "room": self.id, "from_start": True} | options
        member = Member(Room(urls, speaks=speaks, **named), options.get("hears") or speaks)
        await member.room.join()
        self.id = self.id or member.room.id
        reading = asyncio.get_running_loop().create_task(member.read())
        self._stack.push_async_callback(_finish, member, reading)
        self.members.append(member)
        return member

    async def log(self) -> list[Entry]:
        return await self.store.read(self.id, 0, 100_000)

    async def ended(self, captions: int) -> bool:
        """Whether so many captions are in the log, and every language of them has its end."""
        originals = [entry for entry in await self.log() if entry.is_original]
        return len(originals) >= captions and not await self.store.pending(self.id)

    async def check(self, captions: int) -> list[Entry]:
        """Every member received exactly what concerns it, once and in order; every language ended once. The transcript
        is what members show."""
        await wait_until(lambda: self.ended(captions), TIMEOUT_S, "every language to end")
        log = await self.log()
        assert [entry.seq for entry in log] == list(range(1, len(log) + 1))
        for member in self.members:
            expected = [entry.seq for entry in log if entry.is_original or entry.lang == member.hears]
            await wait_until(lambda: len(member.numbers) >= len(expected), TIMEOUT_S, "all entries")  # noqa: B023
            assert member.numbers == expected, member.room.session_id
            path = transcript_path(self.id, member.hears)
            assert member.shown == lines_of(await self._scenario.get(path)), member.room.session_id
        ends = [(entry.caption, entry.lang) for entry in log if not entry.is_original]
        assert len(ends) == len(set(ends))
        return log


def transcript_path(room_id: str, lang: str) -> str:
    return f"/api/v1/rooms/{room_id}/transcript?lang={lang}&format=json"


def lines_of(transcript: dict[str, Any]) -> dict[str, str]:
    return {line["caption_id"]: line["text"] for line in transcript["lines"]}


def time_to_end_ms(log: list[Entry], kind: EntryKind) -> int:
    """The longest time from a caption to such an end of one of its languages, by the clock of Redis."""
    began = {entry.caption: entry.at_ms for entry in log if entry.is_original}
    return max(entry.at_ms - began[entry.caption] for entry in log if entry.kind is kind)


async def _finish(member: Member, reading: "asyncio.Task[None]") -> None:
    await member.room.leave()
    await asyncio.gather(reading, return_exceptions=True)


@asynccontextmanager
async def gathering(scenario: Scenario) -> AsyncIterator[Gathering]:
    async with AsyncExitStack() as stack:
        yield Gathering(scenario, stack)


@asynccontextmanager
async def room(harness: Harness) -> AsyncIterator[tuple[Scenario, Gathering]]:
    async with new_scenario(harness) as scenario, gathering(scenario) as met:
        yield scenario, met


def languages(count: int) -> list[str]:
    """Only the nodes of one test serve them."""
    return [f"l{uuid4().hex[:8]}" for _ in range(count)]


def store_of(redis: Redis, keys: Keys) -> Rooms:
    return Rooms(redis, keys, RoomBounds())
