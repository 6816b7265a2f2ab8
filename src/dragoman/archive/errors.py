"""What can go wrong between us and the database, as one tree.

    ArchiveError
    ├── ArchiveAway   there is no usable database at the moment: try the same again later
    ├── Fenced        another instance holds the shard now: nothing was written
    ├── BadRow        this data can never be written: whoever gave several rows finds the one by halving
    └── WrongSchema   the tables are not ours: of a newer release, or changed by hand

After ArchiveAway a write may have happened all the same (the connection was lost while it was committed). Every write
here may be repeated, so the answer is always the same: try again.
"""


class ArchiveError(Exception):
    """The database did not do, or may not have done, what was asked; `str()` is one sentence for the operator."""


class ArchiveAway(ArchiveError):
    """Not reachable, locked too long, shutting down, disk full, too slow. The next call tries again by itself."""


class Fenced(ArchiveError):
    """The shard has a higher fence than ours: another instance writes it now, and nothing of this was written."""


class BadRow(ArchiveError):
    """A value that this database can never hold."""


class WrongSchema(ArchiveError):
    """The database cannot be used by this release; waiting does not help."""
