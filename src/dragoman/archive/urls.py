"""Which database a URL names, and which URL the settings mean.

`sqlite:///chat.sqlite3` is relative to the working directory, `sqlite:////var/lib/chat.sqlite3` is absolute, and
`postgresql://user:password@host/database` takes what libpq takes.
"""

from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from dragoman.archive.archive import Archive
from dragoman.archive.types import ArchiveError
from dragoman.config.schema import Archive as Settings
from dragoman.config.schema import Config

SQLITE_FILE = "chat.sqlite3"
_POSTGRES = ("postgresql", "postgres")


def archive_url(config: Config) -> str:
    """`archive.url`; empty, it means a file of its own in the data directory of the embedded engine."""
    if config.archive.url:
        return config.archive.url
    path = Path(config.embedded.data_dir).expanduser().absolute() / SQLITE_FILE
    return f"sqlite:///{quote(str(path))}"


def open_archive(url: str, settings: Settings | None = None) -> Archive:
    """The archive at `url`, not yet connected: `await archive.open()`, or just use it."""
    settings = settings or Settings()
    scheme = urlsplit(url).scheme
    if scheme == "sqlite":
        from dragoman.archive.sqlite import SqliteArchive

        return SqliteArchive(sqlite_path(url), busy_ms=settings.busy_ms)
    if scheme in _POSTGRES:
        from dragoman.archive.postgres import PostgresArchive

        return PostgresArchive(url, pool=settings.pool)
    raise ArchiveError(
        f"archive.url starts with {scheme or url[:12]!r}: write sqlite:///path or postgresql://user@host/database."
    )


def sqlite_path(url: str) -> Path:
    parts = urlsplit(url)
    if parts.scheme != "sqlite" or parts.netloc or len(parts.path) < 2:
        raise ArchiveError("archive.url must be written sqlite:///path, or sqlite:////path from the root.")
    return Path(unquote(parts.path[1:])).expanduser().absolute()
