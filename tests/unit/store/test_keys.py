"""The data model: names are literal, each is in the table once, and what a script touches is in one slot."""

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from dragoman.config.schema_chat import TwoPhaseStreams
from dragoman.store.keys import DEFAULT_PREFIX, LIVES, TABLE, ConfiguredKey, FixedKey, Keys, markdown
from dragoman.store.redis import slot_of
from support.tables import for_each

KEYS = Keys("P")
CHAT = Keys(DEFAULT_PREFIX)
ROOT = Path(__file__).resolve().parents[3]
STORE = ROOT / "src/dragoman/store"
# Streams whose names are settings: a shard's tag is appended to them.
SET = [f"{name}:{{im1}}" for name in (TwoPhaseStreams().accepted, TwoPhaseStreams().to_save)]

# As other tools know them: these must never change.
LITERAL = {
    "P:schedulers:presence:i1": KEYS.presence("i1"),
    "P:nodes:owner:{node:n1}": KEYS.node_owner("n1"),
    "P:sessions:owner:{session:s1}": KEYS.session_owner("s1"),
    "P:streams:{instance:i1}:inbox": KEYS.inbox("i1"),
    "P:streams:{instance:i1}:dlq": KEYS.dlq("i1"),
    "P:streams:{instance:i1}:open": KEYS.open("i1"),
    "P:v1:instances:{instance:i1}:jobs": KEYS.jobs_of("i1"),
    "P:v1:instances:{instance:i1}:sessions": KEYS.sessions_of("i1"),
    "P:v1:instances:{instance:i1}:nodes": KEYS.nodes_of("i1"),
    "P:v1:nodes:all": KEYS.nodes_all,
    "P:v1:nodes:last_seen": KEYS.nodes_last_seen,
    "P:v1:nodes:presence:n1": KEYS.node_presence("n1"),
    "P:v1:nodes:snapshot:n1": KEYS.node_snapshot("n1"),
    "P:v1:requests:lock:r1": KEYS.request_lock("r1"),
    "P:v1:requests:binding:r1": KEYS.request_binding("r1"),
    "P:v1:nodes:{node:n1}:reserved": KEYS.reserved("n1"),
    "P:v1:jobs:{job:j1}:fsm": KEYS.job("j1"),
    "P:v1:jobs:recent": KEYS.jobs_recent,
    "P:v1:audit": KEYS.audit,
    "P:users:owner:{user:7}": KEYS.user_owner(7),
    "P:v1:chat:switches": KEYS.chat_switches,
    "P:v1:chat:layout": KEYS.chat_layout,
    "P:v1:chat:worker:3": KEYS.worker(3),
    "im:stream:single_chat:dead:{im1}": CHAT.dead("im1"),
    "im:shard:{im1}": CHAT.shard("im1"),
    "im:unsaved:{im1}": CHAT.unsaved("im1"),
    "im:lease:{im1}": CHAT.lease("im1"),
    "im:claim:{im1}:7:m-1": CHAT.claim("im1", 7, "m-1"),
    "im:sv:{user:7}": CHAT.session_version(7),
    "im:logins:abc": CHAT.login_tries("abc"),
    "im:logins_of:abc": CHAT.logins_of("abc"),
    "im:login_address:abc": CHAT.login_address("abc"),
    "im:invite:abc": CHAT.invite("abc"),
    "im:early:{user:7}": CHAT.early(7),
    "im:failed:{user:7}": CHAT.failed(7),
    "scheduler:turn:t1": KEYS.turn("t1"),
    "scheduler:session:s1": KEYS.session_turn("s1"),
}


def made_by(keys: Keys, id: str) -> Iterator[tuple[str, str]]:
    """Every key that the class can make."""
    for row in TABLE:
        if isinstance(row, FixedKey):
            yield row.attribute, getattr(keys, row.attribute)
        elif not isinstance(row, ConfiguredKey):
            yield row.attribute, getattr(keys, row.attribute)(*[id] * (len(row.parts("P")) - 1))


def uses() -> dict[str, set[str]]:
    """The modules of the store that use each key."""
    found: dict[str, set[str]] = {row.attribute: set() for row in TABLE}
    for path in STORE.rglob("*.py"):
        for name in re.findall(r"\bkeys\.(\w+)\b", path.read_text(encoding="utf-8")):
            if name in found and path.name not in ("keys.py", "script.py"):
                found[name].add(str(path.relative_to(STORE).with_suffix("")))
    return found


@for_each(LITERAL)
def test_names_are_literal(literal: str) -> None:
    assert LITERAL[literal] == literal


@for_each(product(["dragoman", "t-1.x", "a:b"], ["a1", "s-1:0:es", "with space", "ünïcode", "{odd}", "a:b:inbox"]))
def test_every_key_that_can_be_made_is_in_the_table_exactly_once(prefix: str, id: str) -> None:
    for name, key in made_by(Keys(prefix), id):
        assert len([row for row in TABLE if row.pattern(prefix).match(key)]) == 1, name


def test_every_row_of_the_table_is_made_by_something() -> None:
    made = [*SET, *(key for _, key in made_by(CHAT, "x"))]
    assert [row.name for row in TABLE if not any(row.pattern(DEFAULT_PREFIX).match(key) for key in made)] == []


def test_the_keys_of_chat_stand_under_a_prefix_of_ones_own_so_that_two_clusters_can_share_a_redis() -> None:
    assert Keys("mine").shard("im1") == "mine:im:shard:{im1}"
    assert not any(row.pattern("mine").match(CHAT.shard("im1")) for row in TABLE)


def test_the_table_does_not_know_another_prefix() -> None:
    assert not any(row.pattern("mine").match(Keys("yours").job("j")) for row in TABLE)
    assert not any(row.pattern("a.c").match(Keys("abc").job("j")) for row in TABLE), "a dot is a dot"


@for_each(
    [
        [KEYS.node_owner("x"), KEYS.node_epoch("x"), KEYS.reserved("x"), KEYS.storm("x")],
        [KEYS.inbox("x"), KEYS.dlq("x"), KEYS.open("x"), KEYS.counts("x")],
        [KEYS.inbox("x"), KEYS.jobs_of("x"), KEYS.sessions_of("x"), KEYS.nodes_of("x"), KEYS.takeover("x")],
        [CHAT.claim("im1", 7, "m"), *SET, CHAT.dead("im1"), CHAT.shard("im1"), CHAT.unsaved("im1"), CHAT.lease("im1")],
    ]
)
def test_keys_of_one_script_are_in_one_slot(together: list[str]) -> None:
    assert len({slot_of(key) for key in together}) == 1


def test_every_row_has_a_type_and_a_life() -> None:
    for row in TABLE:
        assert row.type in {"string", "hash", "list", "set", "zset", "stream"}, row.name
        assert row.life, row.name
        assert row.expires == row.life.startswith("TTL ")


def test_writers_and_readers_of_a_key_are_the_modules_that_use_it() -> None:
    used = uses()
    for row in TABLE:
        writers, readers = set(row.writer.split(", ")), set(row.reader.split(", "))
        assert writers, row.name
        assert readers, row.name
        if not isinstance(row, ConfiguredKey):
            assert writers | readers == used[row.attribute], row.name


def test_page_is_what_the_table_says() -> None:
    command = "python -m dragoman.store.keys > docs/reference/redis-keys.md"
    assert (ROOT / "docs/reference/redis-keys.md").read_text(encoding="utf-8") == markdown(), (
        f"make it again: {command}"
    )


def test_page_has_every_key_once_and_no_cell_breaks_its_row() -> None:
    text = markdown()
    assert [row.name for row in TABLE if text.count(f"| `{row.name}` |") != 1] == []
    assert {line.count("|") for line in text.splitlines() if line.startswith("| `")} == {7}


def test_every_time_to_live_is_explained() -> None:
    assert {row.life for row in TABLE if row.expires} - set(LIVES) == set(), "say in LIVES how long that is"
