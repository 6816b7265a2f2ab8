"""The archive in one SQLite file, shared by every instance on this machine.

`file` opens it, `writer` is the one thread that writes, `writes` and `reads` are what is done on a connection, and
`archive` puts them behind the interface.
"""

from dragoman.archive.sqlite.archive import SqliteArchive

__all__ = ["SqliteArchive"]
