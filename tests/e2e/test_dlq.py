"""`dragoman dlq`: dead letters listed, shown, replayed, dropped; nothing is changed without --yes."""

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.main import run
from dragoman.protocol.peer import Evict, encode_peer
from support.commands import Dragoman, answer, serve
from support.waiting import wait_for

NAME = "rome"
GOOD = encode_peer(Evict("nobody-has-this-node", 1))
DEAD = "dragoman:streams:{instance:%s}:dlq"
_numbers = count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dragoman]:
    with serve(tmp_path_factory.mktemp("server"), "--set", f"scheduler.phase2.instance_id={NAME}") as running:
        yield running.until("Dragoman is ready after")


@pytest.fixture(autouse=True)
def nothing_left(server: Dragoman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    with server.redis() as redis:
        for instance in redis.call("SMEMBERS", "dragoman:v1:dlq:instances"):
            redis.call("DEL", DEAD % instance)
        redis.call("DEL", "dragoman:v1:dlq:instances")


class Dlq:
    """`dragoman dlq …` on the server, in this process: fast, and the same code."""

    def __init__(self, server: Dragoman, capsys: pytest.CaptureFixture[str]) -> None:
        self._base, self._capsys = server.base, capsys

    def __call__(self, *args: str, code: int = 0) -> str:
        """What it prints; its errors where it fails."""
        assert run(["dlq", *args, "--url", self._base]) == code
        out, err = self._capsys.readouterr()
        assert "Traceback" not in err
        return err if code else out

    def json(self, *args: str, code: int = 0) -> Any:
        assert run(["dlq", *args, "--json", "--url", self._base]) == code
        return json.loads(self._capsys.readouterr().out)


@pytest.fixture
def dlq(server: Dragoman, capsys: pytest.CaptureFixture[str]) -> Dlq:
    return Dlq(server, capsys)


def letter(server: Dragoman, data: bytes = GOOD, instance: str = NAME, reason: str = "because") -> str:
    """One dead letter; its name."""
    fields = ("v", "1", "type", "evict", "trace_id", "t-1", "size", len(data), "data", data, "reason", reason)
    with server.redis() as redis:
        times = ("deliveries", "6", "added_ms", "1700000000000", "dead_ms", int(redis.call("TIME")[0]) * 1000)
        # Two streams may take the same millisecond: the ids tell which came first.
        id = redis.call("XADD", DEAD % instance, f"{next(_numbers)}-0", *fields, *times)
        redis.call("SADD", "dragoman:v1:dlq:instances", instance)
    return f"{instance}/{id}"


def test_dlq_commands_say_that_there_are_no_dead_letters(dlq: Dlq) -> None:
    for args in (("list",), ("replay", "all"), ("drop", "all", "--yes")):
        assert dlq(*args) == "There are no dead letters.\n"
        assert dlq.json(*args) == []


def test_dlq_list_has_every_id_and_reason(server: Dragoman, dlq: Dlq) -> None:
    """Whatever the width: the name is what one copies into the next command."""
    long = "production-" * 10 + "1"
    names = [letter(server), letter(server, instance=long, reason="no such thing [bold]as this[/bold]")]
    lines = dlq("list").splitlines()
    assert [line.split("  ")[0] for line in lines[::2]] == names
    assert lines[0].endswith(f"evict, 6 deliveries, {len(GOOD)} bytes, {lines[0].split(', ')[-1]}")
    assert lines[0].split(", ")[-1].endswith(" s ago")
    assert [line.strip() for line in lines[1::2]] == ["because", "no such thing [bold]as this[/bold]"]
    assert [row["instance"] for row in dlq.json("list", "--instance", long)] == [long]


def test_dlq_list_is_cut_and_says_so(server: Dragoman, dlq: Dlq) -> None:
    names = [letter(server) for _ in range(4)]
    assert dlq("list", "--count", "3").splitlines()[-1] == "… and more; raise --count to see them."
    assert len(dlq("list", "--count", "4").splitlines()) == 2 * len(names)
    assert len(dlq.json("list", "--count", "3")) == 3


def test_dlq_show_hides_the_audio(server: Dragoman, dlq: Dlq) -> None:
    name = letter(server, b'{"type":"assign","job_id":"j","frame":{"audio":"UklGR"}}')
    shown = dlq("show", name)
    for line in ("instance  rome", "reason  because", "deliveries  6", "trace_id  t-1", '"job_id":"j"'):
        assert line in shown
    assert "UklGR" not in shown
    assert dlq.json("show", name)["reason"] == "because"


def test_dlq_replay_is_a_dry_run_without_yes(server: Dragoman, dlq: Dlq) -> None:
    name = letter(server)
    assert dlq("replay", name) == f"would replay {name}\nNothing was changed. Repeat the command with --yes to do it.\n"
    assert dlq.json("replay", name) == [{"letter": name, "done": False}]
    assert len(dlq.json("list")) == 1
    assert dlq("replay", name, "--yes") == f"replayed {name}\n"
    assert dlq.json("list") == []
    wait_for(lambda: _done(server) >= 1, "the replayed entry to be worked")


def test_dead_letter_of_a_dead_instance_is_replayed_to_a_live_one(server: Dragoman, dlq: Dlq) -> None:
    before = _done(server)
    name = letter(server, instance="long-gone")
    assert dlq.json("replay", name, "--yes") == [{"letter": name, "done": True, "replayed": True, "verdict": "OK"}]
    wait_for(lambda: _done(server) == before + 1, "the replayed entry to be worked")


def test_dlq_drop_is_a_dry_run_without_yes(server: Dragoman, dlq: Dlq) -> None:
    name = letter(server)
    assert dlq("drop", name) == f"would drop {name}\nNothing was changed. Repeat the command with --yes to do it.\n"
    assert dlq.json("drop", name, "--yes") == [{"letter": name, "done": True, "dropped": True}]
    assert dlq("list") == "There are no dead letters.\n"


def test_dlq_replay_all_goes_on_after_a_failure(
    server: Dragoman, dlq: Dlq, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.cli.operate.PAGE", 2)
    names = [letter(server), letter(server, b"{"), letter(server), letter(server, instance="other")]
    assert run(["dlq", "replay", "all", "--yes", "--url", server.base]) == 1
    out, err = capsys.readouterr()
    assert sorted(out.splitlines()) == sorted(f"replayed {name}" for name in names if name != names[1])
    assert err.startswith(f"dragoman: {names[1]}: Dragoman answers: it cannot be replayed, only dropped: ")
    assert [f"{row['instance']}/{row['id']}" for row in dlq.json("list")] == [names[1]]
    [row] = dlq.json("replay", "all", "--yes", code=1)
    assert (row["letter"], row["done"]) == (names[1], False)
    assert dlq("drop", "all", "--yes") == f"dropped {names[1]}\n"


def test_dlq_replay_all_of_one_instance_keeps_the_others(server: Dragoman, dlq: Dlq) -> None:
    mine, other = letter(server), letter(server, instance="other")
    assert dlq("drop", "all", "--instance", "other", "--yes") == f"dropped {other}\n"
    assert [f"{row['instance']}/{row['id']}" for row in dlq.json("list")] == [mine]


@pytest.mark.parametrize("name", ["rome", "rome/", "rome/5", "rome/x-1", "/1-1", "rome/1-1-1", "a b/1-1", "rome/²-1"])
@pytest.mark.parametrize("verb", ["show", "replay", "drop"])
def test_invalid_id_of_a_dead_letter_is_refused_in_one_sentence(dlq: Dlq, verb: str, name: str) -> None:
    assert dlq(verb, name, code=2) == (
        f"dragoman: {name!r} is not a dead letter. Give <instance>/<id> as `dragoman dlq list` prints it.\n"
    )


def test_unknown_dead_letter_is_reported_in_one_sentence(dlq: Dlq) -> None:
    assert dlq("show", "rome/1-1", code=1) == "dragoman: Dragoman answers: no such dead letter.\n"
    for args in (("replay",), ("drop", "--yes")):
        assert dlq(*args, "rome/1-1", code=1) == "dragoman: rome/1-1: Dragoman answers: no such dead letter.\n"


def test_id_of_a_dead_letter_contains_its_instance(dlq: Dlq) -> None:
    assert dlq("drop", "rome/1-1", "--instance", "rome", code=2).startswith(
        "dragoman: --instance is only valid with `all`"
    )


def test_dlq_without_a_server_prints_one_sentence(tmp_path: Path) -> None:
    code, out, err = answer(tmp_path, "dlq", "list", "--url", "127.0.0.1:1")
    assert (code, out) == (1, "")
    assert err.startswith("dragoman: Dragoman does not answer at http://127.0.0.1:1 (")


def _done(server: Dragoman) -> int:
    [row] = server.get("/api/v1/cluster")[1]["instances"]
    return int(row["inbox"]["done"])
