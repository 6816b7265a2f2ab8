"""Chat from accept to saved, in every order: the model holds its promises, planted bugs are found, and real parts do
what the model does.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dragoman.archive.sqlite import SqliteArchive
from dragoman.domain.chat import shards as chat_shards
from dragoman.services.chat.delivery import SenderNotice
from dragoman.services.chat.save_stage import SaveStage
from dragoman.store.chat.entries import SavedEntry
from dragoman.store.chat.shards import Shards, StreamNames
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from model.chat_protocol import (
    ACKED_EARLY,
    BUGS,
    CLAIM_FIRST,
    CLAIM_KEPT,
    DUPLICATE_SAVED,
    HARMLESS,
    MOVED_FIRST,
    NAMES,
    NO_SQL_FENCE,
    NOT_NOTIFIED_AGAIN,
    NOT_TOLD_AGAIN,
    PENDING_FORGOTTEN,
    SAVED_EARLY,
    Bound,
    Chat,
    State,
    model_of,
)  # fmt: skip
from model.chat_protocol_walk import GATES, TTL_MS, Walk
from model.explorer import Step, explore

# What may happen, in every order. Each is a few thousand states: together they are walked with every change.
CRASH_AND_LAPSE, DEAD_LETTERS = "two messages, a crash and a lapse", "dead letters"
COMES_AND_GOES = "a sender that comes and goes"
BOUNDS = {
    CRASH_AND_LAPSE: Bound(("a=x", "b=x"), sends=2, crashes=1, lapses=1),
    "other bodies, claims that lapse": Bound(("a=x", "a=y"), sends=3, lapses=1, claims=1),
    "other receivers, claims that lapse": Bound(("a=x", "a=z"), sends=3, lapses=1, claims=1),
    DEAD_LETTERS: Bound(("a=x", "b=x"), sends=3, lapses=1, refusals=1),
    COMES_AND_GOES: Bound(("a=x",), sends=3, crashes=1, lapses=1, breaks=1),
}
DEEPER = {
    "two messages, a crash and two lapses": Bound(("a=x", "b=x"), sends=2, crashes=1, lapses=2),
    "three messages of two bodies": Bound(("a=x", "a=y", "b=x"), sends=3, crashes=1, lapses=1, refusals=1),
    "three messages to two receivers": Bound(("a=x", "a=z", "b=x"), sends=3, crashes=1, lapses=1, refusals=1),
    "dead letters of a sender that comes and goes": Bound(("a=x",), sends=3, crashes=1, lapses=1, breaks=1, refusals=1),
}


@pytest.mark.parametrize("bound", BOUNDS)
def test_no_accepted_message_is_lost_and_no_sender_waits_for_ever(bound: str) -> None:
    found = explore(model_of(BOUNDS[bound]))
    assert not found.wrong, str(found)
    print(f"{bound}: {found.states} states, {found.deepest} steps deep")


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("bound", DEEPER)
def test_no_accepted_message_is_lost_in_longer_runs(bound: str) -> None:
    found = explore(model_of(DEEPER[bound]))
    assert not found.wrong, str(found)
    print(f"{bound}: {found.states} states, {found.deepest} steps deep")


FOUND = {
    CLAIM_FIRST: (CRASH_AND_LAPSE, "which never was"),
    DUPLICATE_SAVED: (CRASH_AND_LAPSE, "which is no row"),
    NO_SQL_FENCE: (CRASH_AND_LAPSE, "wrote after another with a higher fence"),
    SAVED_EARLY: (CRASH_AND_LAPSE, "which is no row"),
    ACKED_EARLY: (CRASH_AND_LAPSE, "is nowhere"),
    PENDING_FORGOTTEN: (CRASH_AND_LAPSE, "waits here for ever"),
    NOT_TOLD_AGAIN: (COMES_AND_GOES, "waits here for ever"),
    NOT_NOTIFIED_AGAIN: (DEAD_LETTERS, "waits here for ever"),
    MOVED_FIRST: (DEAD_LETTERS, "its sender does not know"),
    CLAIM_KEPT: (DEAD_LETTERS, "waits here for ever"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_in_the_protocol_is_found(bug: str) -> None:
    bound, wrong = FOUND[bug]
    found = explore(model_of(BOUNDS[bound], bug))
    assert wrong in found.wrong, str(found)
    print(found)


@pytest.mark.parametrize("bug", HARMLESS)
def test_protocol_holds_without_these_lease_comparisons(bug: str) -> None:
    """As long as this holds, nobody need look at them for a lost message."""
    assert not explore(model_of(BOUNDS[DEAD_LETTERS], bug)).wrong


# -- the model and the real parts


def ways(bound: Bound, number: int, seed: int) -> Iterator[list[Step[State]]]:
    """Ways through the model, drawn by a seed. Most steps are those that happen by themselves."""
    draw, chat = random.Random(seed), Chat(bound)
    for _ in range(number):
        state, way = bound.first, list[Step[State]]()
        while steps := list(chat.steps(state)):
            step = draw.choices(steps, [3 if step.fair else 1 for step in steps])[0]
            way.append(step)
            state = step.after
        yield way


def telling(ways: Iterable[list[Step[State]]]) -> Iterator[list[Step[State]]]:
    """Those in which one kind of step follows another for the first time."""
    seen = set[tuple[object, ...]]()
    for way in ways:
        kinds = [tuple(word for word in step.words if isinstance(word, str) and word not in NAMES) for step in way]
        if new := {*pairwise(kinds)} - seen:
            seen |= new
            yield way


async def walk(redis: Redis, keys: Keys, database: Path, way: list[Step[State]]) -> None:
    streams = f"{keys.im}:stream:single_chat"
    shards = Shards(redis, keys, StreamNames(f"{streams}:accepted", f"{streams}:to_save", "deliver", "save"), 1, TTL_MS)
    archive = SqliteArchive(database)
    world, taken = Walk(shards, archive), list[str]()
    try:
        for step in way:
            taken.append(str(step))
            await world.take(step)
    except AssertionError as error:
        raise AssertionError("\n".join([*taken, str(error)])) from error
    finally:
        await world.end()
        await archive.close()


@pytest.fixture
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pauses between two batches: the model says when something is read."""
    monkeypatch.setattr(chat_shards, "READ_INTERVAL_S", 0)


@pytest.mark.usefixtures("brisk")
async def test_stages_scripts_and_database_match_the_model(redis: Redis, keys: Keys, tmp_path: Path) -> None:
    seen = Counter[str]()
    for number, way in enumerate(telling(way for bound in BOUNDS.values() for way in ways(bound, 60, seed=1))):
        await walk(redis, Keys(f"{keys.prefix}:{number}"), tmp_path / f"{number}.sqlite3", way)
        seen.update(str(step.words[1]) for step in way if step.words[0] in NAMES)
    assert {*GATES, "dies", "takes the lease"} <= {*seen}, "every kind of step was taken"
    print(f"{number + 1} ways, {seen.total()} steps of instances")


@pytest.mark.usefixtures("brisk")
@pytest.mark.parametrize("redis_at", ["single"], indirect=True)
async def test_stages_that_differ_from_the_model_are_found(
    redis: Redis, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saved is sent after the acknowledgement to Redis: after a crash in between it is never sent."""

    async def forgotten_first(stage: SaveStage, lease: Any, entries: Any, outcomes: Any) -> None:
        rows = [SavedEntry(entry, outcome.message.id) for entry, outcome in zip(entries, outcomes, strict=True)]
        await stage._acknowledge(lease, rows)
        await stage._delivery.notify([SenderNotice(entry.sender, b"") for entry in entries])

    monkeypatch.setattr(SaveStage, "_committed", forgotten_first)
    (way,) = ways(Bound(("a=x",), sends=1), 1, seed=0)
    with pytest.raises(AssertionError, match="it wants to saved, the model says notify"):
        await walk(redis, keys, tmp_path / "chat.sqlite3", way)
