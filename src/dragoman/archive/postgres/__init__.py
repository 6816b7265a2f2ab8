"""The archive in PostgreSQL, shared by every instance that reaches it.

`server` is the way there: connections, time limits, migrations and the meaning of errors. `writes` is what is written
on a connection, `group_commit` lets single messages share a transaction, and `archive` puts them behind the interface.
"""

from dragoman.archive.postgres.archive import PostgresArchive

__all__ = ["PostgresArchive"]
