"""A SQLite file that cannot be used for a while: calls say so, and the first one afterwards works."""

import asyncio
import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from dragoman.archive import ArchiveAway, BadRow, Fenced
from dragoman.archive.sqlite import SqliteArchive
from integration.archive.letters import letter, verdicts
from support.databases import ask


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "chat.sqlite3"


@pytest.fixture
def archive(path: Path, runner: asyncio.Runner) -> Iterator[SqliteArchive]:
    made = SqliteArchive(path, busy_ms=60)
    yield made
    runner.run(made.close())


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def damage(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"this is not a database" * 100)


async def test_the_folder_and_the_file_are_for_the_owner_alone(archive: SqliteArchive, path: Path) -> None:
    await archive.open()
    assert [os.stat(place).st_mode & 0o077 for place in (path.parent, path)] == [0, 0]


async def test_database_locked_too_long_is_unavailable_and_no_call_waits_twice(
    archive: SqliteArchive, path: Path
) -> None:
    await archive.save([letter(1, 2)])
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    async with asyncio.timeout(20):
        told = await asyncio.gather(*(archive.save([letter(1, 2)]) for _ in range(200)), return_exceptions=True)
    assert {type(error) for error in told} == {ArchiveAway}
    assert "locked by another process" in str(told[0])
    assert len(await archive.history(1, 2, limit=5)) == 1  # reading goes on
    other.execute("ROLLBACK")
    other.close()
    assert verdicts(await archive.save([letter(1, 2)])) == ["saved"]


async def test_full_disk_is_unavailable_until_there_is_room(archive: SqliteArchive, path: Path) -> None:
    await archive.save([letter(1, 2)])
    with no_file_larger_than(200_000):
        with pytest.raises(ArchiveAway):
            await archive.save([letter(1, 2, "x" * 4000) for _ in range(100)])
        kept = await archive.history(1, 2, limit=1000)
    assert verdicts(await archive.save([letter(1, 2)])) == ["saved"]
    assert [message.seq for message in await archive.history(1, 2, limit=1000)] == list(range(len(kept) + 1, 0, -1))


async def test_a_path_that_leads_nowhere_is_tried_again(archive: SqliteArchive, path: Path) -> None:
    path.parent.write_text("a file in the place of the folder")
    for _ in range(2):
        with pytest.raises(ArchiveAway):
            await archive.open()
        with pytest.raises(ArchiveAway):
            await archive.undelivered(1)
    path.parent.unlink()
    assert verdicts(await archive.save([letter(1, 2)])) == ["saved"]
    assert len(await archive.undelivered(2)) == 1


async def test_file_that_is_no_database_is_unavailable(archive: SqliteArchive, path: Path) -> None:
    damage(path)
    with pytest.raises(ArchiveAway, match="not a database"):
        await archive.save([letter(1, 2)])
    os.unlink(path)
    assert verdicts(await archive.save([letter(1, 2)])) == ["saved"]


async def test_a_file_put_in_the_place_of_another_is_the_one_used(
    archive: SqliteArchive, path: Path, tmp_path: Path
) -> None:
    await archive.save([letter(1, 2), letter(1, 2)])
    backup = SqliteArchive(tmp_path / "backup.sqlite3")
    await backup.save([letter(8, 9)])
    await backup.close()
    for leftover in path.parent.iterdir():
        leftover.unlink()
    (tmp_path / "backup.sqlite3").replace(path)
    assert verdicts(await archive.save([letter(8, 9)])) == ["saved"]
    assert len(await archive.undelivered(9)) == 2
    assert await archive.undelivered(2) == []


async def test_of_a_group_that_is_committed_group_commit_only_the_bad_piece_fails(
    archive: SqliteArchive, path: Path
) -> None:
    await archive.save([letter(1, 2)], shard=1, fence=5)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")  # so that all of them wait, and become one transaction
    calls = [
        asyncio.ensure_future(archive.save([letter(1, 2)])),
        asyncio.ensure_future(archive.save([letter(1, 2)], shard=1, fence=4)),
        asyncio.ensure_future(archive.save([letter(1, 2)], shard=2**80, fence=4)),
        asyncio.ensure_future(archive.save([letter(1, 2)], shard=1, fence=6)),
    ]
    await asyncio.sleep(0)
    other.execute("ROLLBACK")
    other.close()
    told = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(answer) for answer in told] == [list, Fenced, BadRow, list]
    assert [message.seq for message in await archive.history(1, 2, limit=9)] == [3, 2, 1]
    assert await archive.fence(1) == 6


async def test_caller_cancelled_before_the_commit_does_not_affect_others(archive: SqliteArchive) -> None:
    await archive.open()
    leaving = asyncio.ensure_future(archive.save([letter(1, 2)]))
    staying = asyncio.ensure_future(archive.save([letter(1, 2)]))
    await asyncio.sleep(0)
    leaving.cancel()
    assert verdicts(await staying) == ["saved"]


async def test_closing_commits_what_waits(archive: SqliteArchive, path: Path) -> None:
    await archive.open()
    calls = [asyncio.ensure_future(archive.save([letter(1, 2)])) for _ in range(20)]
    await asyncio.sleep(0)
    await archive.close()
    await asyncio.gather(*calls)
    with pytest.raises(ArchiveAway, match="closed"):
        await archive.save([letter(1, 2)])
    with pytest.raises(ArchiveAway, match="closed"):
        await archive.undelivered(1)
    assert await ask(f"sqlite:///{path}", "SELECT count(*) FROM message") == [(20,)]


LOOK = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
print(db.execute("SELECT count(*) FROM message").fetchone()[0])
db.close()
"""


async def test_a_process_that_looks_and_leaves_takes_nothing_with_it(archive: SqliteArchive, path: Path) -> None:
    """The last one to leave removes the log: it must not take itself for the last while we are here."""
    for saved in range(1, 4):
        await archive.save([letter(1, 2)])
        await archive.history(1, 2, limit=5)  # by a connection of its own
        look = [sys.executable, "-c", LOOK, str(path)]
        looked = await asyncio.to_thread(subprocess.run, look, capture_output=True, text=True, check=True)
        assert int(looked.stdout) == saved


async def test_database_begins_with_a_message_only_when_it_has_the_lock(path: Path) -> None:
    archive, begun = SqliteArchive(path, busy_ms=60_000), list[bool]()
    await archive.open()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        saving = asyncio.ensure_future(archive.save([letter(1, 2)], on_begin=lambda: begun.append(True)))
        assert await archive.undelivered(2) == []  # reading goes on meanwhile
        assert begun == []
        other.execute("ROLLBACK")
    assert verdicts(await saving) == ["saved"]
    assert begun
    await archive.close()
