from pathlib import Path

import pytest

from dragoman.archive import ArchiveError, archive_url, open_archive
from dragoman.archive.postgres import PostgresArchive
from dragoman.archive.sqlite import SqliteArchive
from dragoman.archive.urls import sqlite_path
from dragoman.config.schema import Archive, Config, Embedded


def test_with_no_url_it_is_a_file_in_the_data_directory(tmp_path: Path) -> None:
    odd = tmp_path / "a dir? with #odd %names"
    url = archive_url(Config(embedded=Embedded(data_dir=str(odd))))
    assert sqlite_path(url) == odd / "chat.sqlite3"


def test_a_url_that_is_set_is_taken_as_it_is() -> None:
    assert archive_url(Config(archive=Archive(url="postgresql://host/chat"))) == "postgresql://host/chat"


def test_three_slashes_are_relative_and_four_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert sqlite_path("sqlite:///some/chat.db") == tmp_path / "some/chat.db"
    assert sqlite_path("sqlite:////var/lib/chat.db") == Path("/var/lib/chat.db")


@pytest.mark.parametrize("url", ["sqlite://host/chat.db", "sqlite:///", "sqlite:"])
def test_a_sqlite_url_without_a_path_is_refused(url: str) -> None:
    with pytest.raises(ArchiveError, match="sqlite:///path"):
        open_archive(url)


@pytest.mark.parametrize("url", ["mysql://host/chat", "", "chat.db"])
def test_another_kind_of_database_is_refused(url: str) -> None:
    with pytest.raises(ArchiveError, match=r"archive\.url"):
        open_archive(url)


def test_the_kind_follows_from_the_url(tmp_path: Path) -> None:
    assert isinstance(open_archive(f"sqlite:///{tmp_path}/chat.db"), SqliteArchive)
    assert isinstance(open_archive("postgresql://host/chat"), PostgresArchive)
    assert isinstance(open_archive("postgres://host/chat", Archive(pool=3)), PostgresArchive)
