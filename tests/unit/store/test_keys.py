"""The data model: names are literal, each is in the table once, and what a script touches is in one slot."""

import inspect
from collections.abc import Iterator

import pytest

from dragoman.store.keys import TABLE, Keys
from dragoman.store.redis import slot_of

KEYS = Keys("P")
CHANNELS = {"announcements"}  # names that are no keys

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
    "scheduler:turn:t1": KEYS.turn("t1"),
    "scheduler:session:s1": KEYS.session_turn("s1"),
}


def made_by(keys: Keys, id: str) -> Iterator[tuple[str, str]]:
    """Every key the class can make: its methods, and its names that need no id."""
    for name, method in inspect.getmembers(keys, inspect.ismethod):
        if not name.startswith("_"):
            yield name, method(id)
    for name, value in vars(keys).items():
        if name != "prefix" and name not in CHANNELS:
            yield name, value


@pytest.mark.parametrize("literal", LITERAL)
def test_names_are_literal(literal: str) -> None:
    assert LITERAL[literal] == literal


@pytest.mark.parametrize("id", ["a1", "s-1:0:es", "with space", "ünïcode", "{odd}", "a:b:inbox"])
@pytest.mark.parametrize("prefix", ["dragoman", "t-1.x", "a:b"])
def test_every_key_that_can_be_made_is_in_the_table_exactly_once(prefix: str, id: str) -> None:
    for name, key in made_by(Keys(prefix), id):
        assert len([row for row in TABLE if row.pattern(prefix).match(key)]) == 1, name


def test_every_row_of_the_table_is_made_by_something() -> None:
    made = [key for _, key in made_by(KEYS, "x")]
    assert [row.name for row in TABLE if not any(row.pattern("P").match(key) for key in made)] == []


def test_the_table_does_not_know_another_prefix() -> None:
    assert not any(row.pattern("mine").match(Keys("yours").job("j")) for row in TABLE)
    assert not any(row.pattern("a.c").match(Keys("abc").job("j")) for row in TABLE), "a dot is a dot"


@pytest.mark.parametrize(
    "together",
    [
        [KEYS.node_owner("x"), KEYS.node_epoch("x"), KEYS.reserved("x"), KEYS.storm("x")],
        [KEYS.inbox("x"), KEYS.dlq("x"), KEYS.open("x"), KEYS.counts("x")],
        [KEYS.inbox("x"), KEYS.jobs_of("x"), KEYS.sessions_of("x"), KEYS.nodes_of("x"), KEYS.undertaker("x")],
    ],
    ids=["a node", "an inbox", "an instance"],
)
def test_what_belongs_together_is_in_one_slot(together: list[str]) -> None:
    assert len({slot_of(key) for key in together}) == 1


def test_every_row_says_type_life_writer_and_reader() -> None:
    for row in TABLE:
        assert row.type in {"string", "hash", "list", "set", "zset", "stream"}, row.name
        assert row.life, row.name
        assert row.writer, row.name
        assert row.reader, row.name
        assert row.expires == row.life.startswith("TTL ")
