"""The archive in PostgreSQL, shared by every instance that reaches it.

`server` is the way there: connections, time limits, migrations and the meaning of errors. `writes` and `reads` are what
is done on a connection, `together` lets single messages share a transaction, and `archive` puts them behind the
interface.
"""

from dragoman.archive.postgres.archive import PostgresArchive

__all__ = ["PostgresArchive"]
