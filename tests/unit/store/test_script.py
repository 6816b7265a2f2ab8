"""The header of a Lua file is its signature, on both sides."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import dragoman.store
from dragoman.store.script import (
    ALL,
    Header,
    Script,
    ScriptError,
    parse_header,
    parse_headers,
    prologue,
    read_sources,
    tag_of,
)
from support.tables import for_each

TAKE = """\
-- Take one slot of a node for a job.
--
-- KEYS  reserved  zset  job ids by expiry, ms
--       waiting   list
-- ARGV  job       str   KEYS may be spoken of here
--       now       now   '' = Redis TIME
--       limit     int
--       others    list
--
-- Returns 'OK' or 'FULL'.
--       trailing  str   is prose: the section has ended
local x = 1
-- KEYS  late  string
return 'OK'
"""

MARK = """\
-- Mark claims.
--
-- KEYS  lease   string
--       claims  keys    one for each
-- ARGV  holder  str
--
-- Returns 'OK'.
return 'OK'
"""


class Recorder:
    """Stands where a client would and remembers what it was asked to run."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[str], list[Any]]] = []

    def evaluate(self, script: Script, keys: list[str], args: list[Any]) -> "asyncio.Future[Any]":
        self.asked.append((script.name, keys, args))
        return asyncio.get_running_loop().create_future()


def script(source: str = TAKE) -> Script:
    return Script("take", source, register=False)


def test_the_header_names_keys_and_arguments_in_their_order() -> None:
    assert parse_header(TAKE, "take") == Header(
        keys=("reserved", "waiting"),
        args=(("job", "str"), ("now", "now"), ("limit", "int"), ("others", "list")),
    )


def test_a_script_without_a_header_takes_nothing() -> None:
    assert parse_header("return 1", "bare") == Header((), ())


@pytest.mark.parametrize(
    "header",
    ["-- ARGV  job  float  no such kind\n", "-- ARGV  jobs  list\n--       now   now\n"],
    ids=["unknown kind", "list before the end"],
)
def test_a_header_that_cannot_be_bound_is_refused_when_the_script_is_loaded(header: str) -> None:
    with pytest.raises(ScriptError, match=r"take: argument jobs? has kind"):
        script(header)


def test_a_last_key_of_kind_keys_stands_for_the_rest_of_them() -> None:
    assert parse_header(MARK, "mark") == Header(("lease",), (("holder", "str"),), rest="claims")
    assert "local lease = KEYS[1] local claims = {} for i = 2, #KEYS do claims[i - 1] = KEYS[i] end" in prologue(
        parse_header(MARK, "mark")
    )


def test_nothing_can_follow_the_rest_of_the_keys() -> None:
    with pytest.raises(ScriptError, match="take: claims stands for the rest of KEYS, so lease cannot follow it"):
        script("-- KEYS  claims  keys\n--       lease   string\n")


@pytest.mark.parametrize("claims", [[], ["{n}:a"], ["{n}:a", "{n}:b"]], ids=["none", "one", "two"])
async def test_the_rest_of_the_keys_may_be_any_number_of_them(claims: list[str]) -> None:
    redis = Recorder()
    script(MARK)(redis, lease="{n}:l", claims=claims, holder="h")
    assert redis.asked == [("take", ["{n}:l", *claims], ["h"])]


async def test_the_rest_of_the_keys_is_in_the_same_slot_and_is_not_forgotten() -> None:
    redis = Recorder()
    with pytest.raises(ScriptError, match=r"\{n\}:l and \{m\}:b are in different slots"):
        script(MARK)(redis, lease="{n}:l", claims=["{n}:a", "{m}:b"], holder="h")
    with pytest.raises(ScriptError, match="take needs claims"):
        script(MARK)(redis, lease="{n}:l", holder="h")
    assert not redis.asked


def test_the_same_header_makes_the_locals_of_the_script() -> None:
    made = prologue(parse_header(TAKE, "take"))
    assert "local reserved = KEYS[1] local waiting = KEYS[2] local job = ARGV[1]" in made
    assert "local now = tonumber(ARGV[2]) if not now then" in made
    assert "local limit = tonumber(ARGV[3])" in made
    assert "for i = 4, #ARGV do others[#others + 1] = ARGV[i] end" in made


def test_the_locals_stand_on_the_first_line_so_that_line_numbers_in_errors_are_those_of_the_file() -> None:
    assert script().source.splitlines()[1:] == TAKE.splitlines()[1:]


def test_a_script_has_the_keys_arguments_and_functions_of_what_it_uses(tmp_path: Path) -> None:
    shared = "-- KEYS  info  hash\n-- ARGV  now  now\n-- of a room\nlocal function half(x)\n    return x / 2\nend\n"
    (tmp_path / "room.lua").write_text(shared)
    (tmp_path / "more.lua").write_text("-- USES  room\n-- ARGV  limit  int\nlocal y = 2\n")
    (tmp_path / "join.lua").write_text("-- USES  more\n-- ARGV  session  str\nreturn half(limit)\n")
    *uses, source = read_sources(tmp_path / "join.lua")
    made = Script("join", source, uses=uses, register=False)
    assert (made.key_names, made.arg_names) == (("info",), ("now", "limit", "session"))
    first, *others = made.source.splitlines()
    assert first.endswith("local function half(x) return x / 2 end local y = 2 -- USES  more")
    assert others == source.splitlines()[1:], "line numbers in errors are those of the script's own file"


async def test_values_are_put_where_the_header_says_whatever_order_they_come_in() -> None:
    redis = Recorder()
    script()(redis, others=["a", "b"], limit=4, job="j", waiting="{n}:w", reserved="{n}:r", now=7)
    assert redis.asked == [("take", ["{n}:r", "{n}:w"], ["j", 7, 4, "a", "b"])]


async def test_only_the_time_may_be_left_out() -> None:
    redis = Recorder()
    script()(redis, reserved="{n}:r", waiting="{n}:w", job="j", limit=4, others=[])
    assert redis.asked == [("take", ["{n}:r", "{n}:w"], ["j", "", 4])]


@pytest.mark.parametrize("missing", ["reserved", "waiting", "job", "limit", "others"])
async def test_a_missing_name_is_refused_by_name(missing: str) -> None:
    redis = Recorder()
    values = {"reserved": "{n}:r", "waiting": "{n}:w", "job": "j", "limit": 4, "others": []}
    del values[missing]
    with pytest.raises(ScriptError, match=f"take needs {missing}"):
        script()(redis, **values)
    assert not redis.asked


async def test_unknown_name_is_refused_with_the_known_ones() -> None:
    redis = Recorder()
    with pytest.raises(ScriptError, match=r"take has no \['slots'\]; it takes .*'limit'"):
        script()(redis, reserved="{n}:r", waiting="{n}:w", job="j", limit=4, others=[], slots=4)
    assert not redis.asked


async def test_keys_of_different_slots_are_refused_at_the_call_on_a_single_redis_too() -> None:
    redis = Recorder()
    with pytest.raises(ScriptError, match=r"take: \{n\}:r and \{m\}:w are in different slots"):
        script()(redis, reserved="{n}:r", waiting="{m}:w", job="j", limit=4, others=[])
    assert not redis.asked


@for_each(
    [
        ("a:{b}:c", "b"),
        ("a:{b}:{c}", "b"),
        ("plain", "plain"),
        ("a:{}:c", "a:{}:c"),
        ("a:{b", "a:{b"),
        ("a}b{c}", "c"),
        ("{{b}}", "{b"),
    ]
)
def test_the_tag_is_what_stands_between_the_first_braces(key: str, tag: str) -> None:
    assert tag_of(key) == tag


def test_a_script_is_addressed_by_its_content() -> None:
    assert script().sha == script().sha
    assert script().sha != script(TAKE.replace("'OK'", "'YES'")).sha


def test_unregistered_script_is_not_loaded() -> None:
    unlisted = script()
    assert unlisted.name not in ALL


def lua_files() -> list[Path]:
    return sorted(Path(dragoman.store.__file__).parent.rglob("*.lua"))


@for_each(lua_files(), lambda path: path.stem)
def test_every_lua_file_opens_with_its_contract(path: Path) -> None:
    sources = read_sources(path)
    lines = sources[-1].splitlines()
    told = [line for line in lines if line.startswith("--")]
    assert parse_headers(sources, path.stem).keys, "no KEYS: it would have no place in a Cluster"
    assert any(line.startswith("-- Returns ") for line in told)
    assert len(lines) <= 60


@for_each(lua_files(), lambda path: path.stem)
def test_every_name_in_a_header_is_used_by_its_script(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    header = parse_header(source, path.stem)
    users = [sources for other in path.parent.glob("*.lua") if source in (sources := read_sources(other))]
    lines = (line for sources in users for text in sources for line in text.splitlines())
    body = "\n".join(line for line in lines if not line.lstrip().startswith("--"))
    names = (*header.keys, *filter(None, [header.rest]), *(arg for arg, _ in header.args))
    assert [name for name in names if name not in body] == []


@for_each(lua_files(), lambda path: path.stem)
def test_no_key_name_is_made_inside_a_script(path: Path) -> None:
    body = "\n".join(line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("--"))
    assert "KEYS[" not in body
    assert "ARGV[" not in body
