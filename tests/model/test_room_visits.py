"""When rooms are visited: the index against two dictionaries, and with rooms, drivers and visitors in any order.

No language of a caption waits for a visit that was lost, no room with a member in it is closed, and no open room is
without a next visit.
"""

import asyncio
import heapq
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import count

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dragoman.domain.rooms import Member
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.store.rooms import rooms as rooms_module
from dragoman.store.rooms.rooms import ANNOUNCED_TTL_MS, Closed, Joined, Refusal, RoomBounds, Rooms, Visited
from model.machines import START_MS, Bench, check, finds_a_difference, planted, with_bug

ROOM = st.sampled_from(["r1", "r2", "r3"])
VISITOR = st.integers(0, 1)
AFTER = st.sampled_from([0, 10, 40, 600])
CLAIM_MS, GUARD_MS = 50, 40


def plant(monkeypatch: pytest.MonkeyPatch, name: str, right: str, wrong: str) -> None:
    monkeypatch.setattr(rooms_module, name.upper(), with_bug(f"rooms/{name}", right, wrong))


class Index(RuleBasedStateMachine):
    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self.bench, self.now = bench, START_MS
        bounds = RoomBounds(translate_timeout_ms=GUARD_MS)
        self.visitors = [Rooms(bench.redis, bench.keys, bounds, now=lambda: self.now) for _ in range(2)]
        self.claims: list[dict[str, int]] = [{}, {}]
        self.due: dict[str, int] = {}
        self.announced: dict[str, int] = {}

    @rule(ms=st.sampled_from([0, 1, 9, 10, 40, 50, 600]))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule(room=ROOM, after=AFTER)
    def announce(self, room: str, after: int) -> None:
        self.bench.do(self.visitors[0].announce(room, after))
        self.due[room] = min(self.due.get(room, self.now + after), self.now + after)
        self.announced[room] = self.now + GUARD_MS
        assert self.bench.lives(self.bench.keys.rooms_announced, ANNOUNCED_TTL_MS)

    @rule(visitor=VISITOR, limit=st.integers(1, 4))
    def claim(self, visitor: int, limit: int) -> None:
        due = sorted((at, room) for room, at in self.due.items() if at <= self.now)[:limit]
        reply = self.bench.do(self.visitors[visitor].claim_due(limit, CLAIM_MS))
        assert reply == [room for _, room in due]
        for room in reply:
            self.due[room] = self.claims[visitor][room] = self.now + CLAIM_MS
            if self.announced.get(room, self.now + 1) <= self.now:
                del self.announced[room]

    @rule(visitor=VISITOR, room=ROOM, after=AFTER)
    def schedule(self, visitor: int, room: str, after: int) -> None:
        claimed = self.claims[visitor].pop(room, 0)
        self.bench.do(self.visitors[visitor].schedule(room, after, claimed))
        if room in self.due:
            at = min(self.now + after, self.announced.get(room, self.now + after))
            self.due[room] = at if self.due[room] == claimed else min(at, self.due[room])

    @rule(visitor=VISITOR, limit=st.integers(1, 4), ms=st.sampled_from([0, 1, 50, 60]), after=AFTER)
    def visit(self, visitor: int, limit: int, ms: int, after: int) -> None:
        """A visit of some length to each room that is due."""
        self.claim(visitor, limit)
        self.now += ms
        for room in sorted(self.claims[visitor]):
            self.schedule(visitor, room, after)

    @rule(visitor=VISITOR, room=ROOM)
    def forget(self, visitor: int, room: str) -> None:
        self.bench.do(self.visitors[visitor].forget_due(room))
        self.claims[visitor].pop(room, None)
        if self.announced.get(room, 0) > self.now:
            self.due[room] = self.announced[room]
        else:
            self.due.pop(room, None)
            self.announced.pop(room, None)

    @invariant()
    def redis_holds_what_the_model_holds(self) -> None:
        for key, held in ((self.bench.keys.rooms_due, self.due), (self.bench.keys.rooms_announced, self.announced)):
            flat = self.bench.call("ZRANGE", key, 0, -1, "WITHSCORES")
            assert {name.decode(): int(at) for name, at in zip(flat[::2], flat[1::2], strict=True)} == held
        pages = [*self.bench.do(self.visitors[0].open_rooms(0, 2)), *self.bench.do(self.visitors[0].open_rooms(2, 2))]
        assert pages == [room for _, room in sorted((at, room) for room, at in self.due.items())]

    def teardown(self) -> None:
        self.bench.call("DEL", self.bench.keys.rooms_due)
        self.bench.call("DEL", self.bench.keys.rooms_announced)


def test_the_scripts_of_the_index_do_what_the_model_does(bench: Bench) -> None:
    check(lambda: Index(bench))


INDEX_BUGS = {
    "a later visit by an announcement": ("announce_room", "due, 'LT', now", "due, now"),
    "an announcement that hides a later one": ("announce_room", "announced, 'GT',", "announced, 'NX',"),
    "an announcement that ends with its visit": ("announce_room", "now + guard", "now + after"),
    "an announcement not added to now": ("announce_room", "due, 'LT', now + after", "due, 'LT', after"),
    "a claim not added to now": ("claim_due_rooms", "due, now + claim, room", "due, claim, room"),
    "an announcement that is deleted early": ("claim_due_rooms", "tonumber(at) <= now", "tonumber(at) > 0"),
    "a visit without its claim that delays the next": ("schedule_room", "if score == claimed or at < score", "if true"),
    "a visit with its claim that delays nothing": ("schedule_room", "score == claimed or ", ""),
    "a visit that delays an announced one": ("schedule_room", "redis.call('ZSCORE', announced, room) or ", ""),
    "a closed room that is scheduled": (
        "schedule_room",
        "if not score then return 'NONE' end",
        "score = score or 1e15",
    ),
    "an announced room that is forgotten": ("forget_due_room", "if at and tonumber(at) > now", "if false"),
}


@pytest.mark.parametrize("redis_at", ["single"], indirect=True)
@pytest.mark.parametrize(
    "bug",
    planted(
        INDEX_BUGS,
        "an announcement that hides a later one",
        "a claim not added to now",
        "a closed room that is scheduled",
        "an announced room that is forgotten",
    ),
)
def test_a_bug_in_the_scripts_of_the_index_is_found(bench: Bench, bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, *INDEX_BUGS[bug])
    assert finds_a_difference(lambda: Index(bench))


# -- drivers that die after an append ----------------------------------------------------------

QUIET = RoomBounds(empty_grace_ms=30_000)
POLL_MS, PAUSE_MS, LONG_CLAIM_MS = 1000, 1500, 5000
CAPTIONS_MS, END_MS = 35_000, 50_000
Delays = AsyncIterator[float]


class World:
    """Drivers and visitors of one room, by a clock of its own. A step of each may be delayed, and each may die."""

    def __init__(self, redis: Redis, keys: Keys, seed: int) -> None:
        self.random, self.now, self.deaths = random.Random(seed), float(START_MS), 0
        self.store = [Rooms(redis, keys, QUIET, now=lambda: int(self.now)) for _ in range(3)]
        self._actors: list[tuple[float, int, Delays]] = []
        self._numbers = count()
        self.appended: dict[str, float] = {}
        self.ended: dict[str, float] = {}

    async def run(self) -> None:
        said = {"tenant": "t", "creator": "p", "settings": b"{}", "log_epoch": "e"}
        await self.store[0].create("r", "123456", persistent=False, locked=False, **said)  # type: ignore[arg-type]
        assert isinstance(await self.store[0].join("r", member("s1", "es")), Joined)
        for visitor in (0, 1):
            self.start(self.polls(visitor), self.random.uniform(0, POLL_MS))
        for number in range(4):
            self.start(self.drives(f"s1:u{number}"), self.random.uniform(0, CAPTIONS_MS))
        while self._actors[0][0] < START_MS + END_MS + self.slack():
            self.now, _, actor = heapq.heappop(self._actors)
            if (delay := await anext(actor, None)) is not None:
                heapq.heappush(self._actors, (self.now + delay, next(self._numbers), actor))

    def start(self, actor: Delays, after: float = 0) -> None:
        heapq.heappush(self._actors, (self.now + after, next(self._numbers), actor))

    def pause(self) -> float:
        return self.random.choice([0, 0, self.random.uniform(0, PAUSE_MS)])

    async def drives(self, caption: str) -> Delays:
        """Announces, appends, and dies."""
        rooms = self.store[2]
        await rooms.announce("r", QUIET.translate_timeout_ms)
        yield self.random.choice([0, self.random.uniform(0, QUIET.translate_timeout_ms - 1)])
        await rooms.append_original("r", caption, "s1", 0, lang="en", text="hello", about=b"{}")
        self.appended[caption] = self.now

    async def polls(self, visitor: int) -> Delays:
        while True:
            for room in await self.store[visitor].claim_due(10, LONG_CLAIM_MS):
                self.start(self.visits(visitor, room), self.pause())
            yield POLL_MS

    async def visits(self, visitor: int, room: str) -> Delays:
        if self.random.random() < 0.1:
            self.deaths += 1
            return
        found = await self.store[visitor].expire_pending(room)
        assert isinstance(found, Visited)
        self.ended |= {entry.caption: self.now for entry in found.expired}
        yield self.pause()
        if self.random.random() < 0.2:
            self.deaths += 1
            if self.random.random() < 0.5:
                return
            yield 2 * LONG_CLAIM_MS
        await self.store[visitor].schedule(room, found.next_ms, found.claim)

    def slack(self) -> int:
        """What polls and pauses may cost. A visitor that dies, or outlasts its claim, costs the claim."""
        return 2 * POLL_MS + 3 * PAUSE_MS + self.deaths * (LONG_CLAIM_MS + POLL_MS)

    def late(self) -> list[str]:
        """Captions whose language did not end in time."""
        took = {caption: self.ended.get(caption, float("inf")) - at for caption, at in self.appended.items()}
        return [caption for caption, ms in took.items() if ms > QUIET.translate_timeout_ms + self.slack()]


def member(session: str, hears: str, epoch: int = 0) -> Member:
    return Member(session, "a", epoch, session, "en", hears, f"p{session}")


async def in_worlds(redis: Redis, keys: Keys, worlds: range) -> list[str]:
    """What was late, in worlds that do not know each other."""

    async def one(seed: int) -> list[str]:
        own = Keys(f"{keys.prefix}:{seed}")
        world = World(redis, own, seed)
        await world.run()
        assert len(world.appended) == 4
        await drop(redis, own, "r")
        return [f"world {seed}: {caption}" for caption in world.late()]

    return [late for found in await asyncio.gather(*map(one, worlds)) for late in found]


async def drop(redis: Redis, keys: Keys, room: str) -> None:
    names = ("info", "members", "seniority", "counts", "log", "captions", "recent", "pending", "removed")
    of_room = [getattr(keys, f"room_{name}")(room) for name in names]
    await asyncio.gather(*(redis.call("DEL", key) for key in (*of_room, keys.rooms_due, keys.rooms_announced)))


@pytest.mark.parametrize("worlds", [300, pytest.param(1000, marks=pytest.mark.long)])
async def test_a_language_ends_in_time_whoever_dies_after_the_append(redis: Redis, keys: Keys, worlds: int) -> None:
    assert await in_worlds(redis, keys, range(worlds)) == []


@pytest.mark.parametrize("redis_at", ["single"], indirect=True)
@pytest.mark.parametrize(
    "bug",
    planted(
        (
            "an announcement that ends with its visit",
            "an announcement that is deleted early",
            "a visit without its claim that delays the next",
            "a visit that delays an announced one",
        ),
        "an announcement that is deleted early",
    ),
)
async def test_a_visit_that_is_lost_is_found(
    redis: Redis, keys: Keys, bug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, *INDEX_BUGS[bug])
    assert await in_worlds(redis, keys, range(300)) != []


# -- the last member leaves while another joins ------------------------------------------------

GRACE_MS = RoomBounds().empty_grace_ms
Step = Callable[[], Awaitable[None]]


class Door:
    """s1 leaves on one instance, s2 may join on another, two instances visit, and time passes, in any order."""

    def __init__(self, redis: Redis, keys: Keys, seed: int) -> None:
        self.random, self.now = random.Random(seed), START_MS
        self.redis, self.keys = redis, keys
        self.stores = [Rooms(redis, keys, RoomBounds(), now=lambda: self.now) for _ in range(3)]
        self.joined = self.left = False
        self.wrong = ""

    async def run(self) -> str:
        said = {"tenant": "t", "creator": "p", "settings": b"{}", "log_epoch": "e"}
        await self.stores[0].create("r", "123456", persistent=False, locked=False, **said)  # type: ignore[arg-type]
        assert isinstance(await self.stores[0].join("r", member("s1", "es", epoch=1)), Joined)
        waiting = [self.leaves(), self.joins(), self.visits(1), self.visits(2), self.clock()]
        while waiting and not self.wrong:
            actor = self.random.choice(waiting)
            if (step := next(actor, None)) is None:
                waiting.remove(actor)
            else:
                await step()
                await self.look()
        for _ in range(4):
            self.now += GRACE_MS
            for step in self.visits(1):
                await step()
            await self.look()
        await self.look_at_the_end()
        await drop(self.redis, self.keys, "r")
        return self.wrong

    def leaves(self) -> Iterator[Step]:
        async def leave() -> None:
            await self.stores[0].leave("r", "s1", 1)
            self.left = True

        yield leave

    def joins(self) -> Iterator[Step]:
        async def join() -> None:
            self.joined = isinstance(await self.stores[2].join("r", member("s2", "es")), Joined)

        if self.random.random() < 0.7:
            yield join

    def clock(self) -> Iterator[Step]:
        async def pass_time() -> None:
            self.now += GRACE_MS

        for _ in range(3):
            yield pass_time

    def visits(self, visitor: int) -> Iterator[Step]:
        """Claim, visit, close, and schedule or forget; it may end between any two of them."""
        rooms, claimed, found, is_gone = self.stores[visitor], list[str](), list[Visited | Refusal](), False

        async def claim() -> None:
            claimed.extend(await rooms.claim_due(10, 5000))

        async def visit() -> None:
            found.append(await rooms.expire_pending("r"))

        async def close() -> None:
            nonlocal is_gone
            reply = await rooms.close("r", "empty", only_if_over=True)
            is_gone = reply is not Refusal.OPEN
            if isinstance(reply, Closed) and reply.sessions:
                self.wrong = f"closed with {reply.sessions} in it"

        async def index() -> None:
            seen = found[0]
            if isinstance(seen, Visited) and not is_gone:
                await rooms.schedule("r", seen.next_ms, seen.claim)
            else:
                await rooms.forget_due("r")

        yield claim
        if claimed:
            yield visit
            if isinstance(found[0], Visited) and found[0].over:
                yield close
            yield index

    async def look(self) -> None:
        state, due = await asyncio.gather(
            self.stores[0].state("r"), self.redis.call("ZSCORE", self.keys.rooms_due, "r")
        )
        is_open = state is not None and not state.closed
        if is_open and due is None:
            self.wrong = "open without a next visit"
        if not is_open and self.joined:
            self.wrong = "closed with s2 in it"

    async def look_at_the_end(self) -> None:
        members = {each.session for each in await self.stores[0].members("r")}
        due = await self.redis.call("ZSCORE", self.keys.rooms_due, "r")
        expected = {"s2"} if self.joined else set()
        if members != expected or (due is None) != (not self.joined):
            self.wrong = self.wrong or f"in the end {members} are in it, and the next visit is {due}"


async def at_doors(redis: Redis, keys: Keys, doors: range) -> set[str]:
    found = set()
    for first in range(doors.start, doors.stop, 200):
        some = range(first, min(first + 200, doors.stop))
        found |= set(await asyncio.gather(*(Door(redis, Keys(f"{keys.prefix}:{n}"), n).run() for n in some)))
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("doors", [400, pytest.param(10_000, marks=pytest.mark.long)])
async def test_no_room_is_closed_with_a_member_in_it_or_left_open_without_a_next_visit(
    redis: Redis, keys: Keys, doors: int
) -> None:
    assert await at_doors(redis, keys, range(doors)) == {""}


@pytest.mark.parametrize("redis_at", ["single"], indirect=True)
@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("close_room", "if only_if_over == 1 and over() == ''", "if false"),
        ("join_room", "'empty_since_ms', '', ", ""),
        ("expire_pending", "first[2] - now or left)", "first[2] - now or left) * 1e6"),
    ],
    ids=["a close that decides nothing", "a join that leaves the room empty", "a next visit that never comes"],
)
async def test_a_room_that_is_closed_or_left_open_wrongly_is_found(
    redis: Redis, keys: Keys, name: str, right: str, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, name, right, wrong)
    assert await at_doors(redis, keys, range(400)) != {""}
