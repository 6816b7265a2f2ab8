"""`dragoman verify` from end to end: the short form in every run of the tests, the matrix in the long ones.

The verdict is by ledger and never by time: recovery times are printed, and nobody here looks at them.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.tools.verify import HEALTHY, TITLES
from support.commands import Dragoman
from support.waiting import alive, wait_for

SHORT_S, REAL_S = 400, 1200
# The long tests have the load that it makes by itself.
SLOW_LOAD = ("--messages-per-s", "15", "--utterances-per-s", "3", "--captions-per-s", "2")


def verified(folder: Path, *args: str, timeout_s: float = SHORT_S) -> dict[str, Any]:
    """What it wrote; every promise held, or the test fails with what it printed."""
    found = folder / "found.json"
    with Dragoman(folder, "verify", "--json", str(found), *args) as command:
        code = command.process.wait(timeout_s)
        assert code == 0, command.out + command.err
    told: dict[str, Any] = json.loads(found.read_bytes())
    return told


def is_complete(told: dict[str, Any], *absent: str) -> bool:
    """Every fault struck, under load, and only what cannot be had here is missing."""
    rows = {row["fault"]: row for row in told["rows"]}
    assert rows.keys() == TITLES.keys()
    assert {name for name, row in rows.items() if row["skipped"]} == set(absent)
    done = {name: row for name, row in rows.items() if name not in absent}
    assert all(row["promised"] > 0 and row["verdict"] == "holds" for row in done.values())
    assert all(row["times"] >= 1 for name, row in done.items() if name != HEALTHY)
    return bool(told["figures"]["lost"] == told["figures"]["duplicated"] == told["figures"]["out_of_order"] == 0)


@pytest.mark.timeout(SHORT_S)
def test_verify_finds_no_broken_promise_under_every_fault(tmp_path: Path) -> None:
    told = verified(tmp_path, *SLOW_LOAD)
    assert is_complete(told, "master-kill")
    assert told.keys() == {"commit", "machine", "settings", "figures", "ratios", "rows"}


@pytest.mark.long
@pytest.mark.timeout(SHORT_S)
@pytest.mark.parametrize(("redis", "db"), [("single", "postgres"), ("cluster", "sqlite"), ("cluster", "postgres")])
def test_nothing_is_lost_on_a_cluster_or_with_postgresql(tmp_path: Path, redis: str, db: str) -> None:
    told = verified(tmp_path, "--redis", redis, "--db", db)
    assert is_complete(told, *(("redis-kill", "redis-kill-everysec") if redis == "cluster" else ("master-kill",)))


@pytest.mark.long
@pytest.mark.timeout(SHORT_S)
@pytest.mark.parametrize("redis", ["single", "cluster"])
@pytest.mark.parametrize("db", ["sqlite", "postgres"])
@pytest.mark.parametrize("mode", ["deliver_first", "off"])
def test_chat_loses_nothing_in_the_other_modes(tmp_path: Path, redis: str, db: str, mode: str) -> None:
    """All loads in the mode `save_first` are above."""
    told = verified(tmp_path, "--only", "chat", "--mode", mode, "--redis", redis, "--db", db)
    assert told["settings"]["path"] == mode
    assert told["figures"]["lost"] == told["figures"]["duplicated"] == told["figures"]["out_of_order"] == 0
    assert sum(row["promised"] for row in told["rows"]) > 0


@pytest.mark.long
@pytest.mark.timeout(REAL_S)
@pytest.mark.parametrize(("redis", "db"), [("single", "sqlite"), ("cluster", "postgres")])
def test_nothing_is_lost_with_faults_of_real_length_and_the_settings_as_shipped(
    tmp_path: Path, redis: str, db: str
) -> None:
    told = verified(tmp_path, "--redis", redis, "--db", db, "--real-lengths", timeout_s=REAL_S)
    assert is_complete(told, *(("redis-kill", "redis-kill-everysec") if redis == "cluster" else ("master-kill",)))


@pytest.mark.long
def test_one_fault_alone_comes_with_the_healthy_case_before_it(tmp_path: Path) -> None:
    told = verified(tmp_path, "--only", "database-stop", "--messages-per-s", "20")
    assert [row["fault"] for row in told["rows"]] == [HEALTHY, "database-stop"]


def test_ctrl_c_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    place = tmp_path / "tmp"
    place.mkdir()
    with Dragoman(tmp_path / "run", "verify", env={"TMPDIR": str(place)}) as command:
        command.until("no fault")
        below = command.below()
        assert len(below) > 5
        command.interrupt()
        assert command.exit_code() == 130
        assert "stopped" in command.err
    wait_for(lambda: not any(map(alive, below)), "everything it started to end")
    assert list(place.iterdir()) == []


def test_unknown_fault_is_refused_with_the_list_of_faults(tmp_path: Path) -> None:
    with Dragoman(tmp_path, "verify", "--faults", "node-kill,earthquake") as command:
        assert command.exit_code() == 2
        assert "'earthquake'" in command.err
        assert all(name in command.err for name in TITLES)


def test_the_names_of_the_faults_can_be_listed(tmp_path: Path) -> None:
    with Dragoman(tmp_path, "verify", "--list") as command:
        assert command.exit_code() == 0
        assert all(name in command.out and title in command.out for name, title in TITLES.items())
