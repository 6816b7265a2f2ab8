"""The archive in one SQLite file, shared by every instance on this machine.

`file` opens it, in a thread that writes and one that reads, `writes` is what is written on a connection, and `archive`
puts them behind the interface.
"""

from dragoman.archive.sqlite.archive import SqliteArchive

__all__ = ["SqliteArchive"]
