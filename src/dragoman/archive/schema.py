"""Numbered migrations: plain SQL files, applied once and in order, and remembered with name and checksum.

A database that has a migration we do not know was changed by a newer release, and one whose checksum differs was not
made by our file: both are refused before anything is read or written. The lock during migrations is left
to the database's own module.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dragoman.archive.types import Migration, WrongSchema

Dialect = Literal["sqlite", "postgres"]

TABLE = "dragoman_migration"
CREATE_TABLE = (
    f"CREATE TABLE IF NOT EXISTS {TABLE} (name TEXT PRIMARY KEY, checksum TEXT NOT NULL, applied_ms BIGINT NOT NULL)"
)
READ_TABLE = f"SELECT name, checksum, applied_ms FROM {TABLE} ORDER BY name"
IDENTITY = "SELECT id FROM identity WHERE one = 1"
_FILES = Path(__file__).with_name("migrations")
_NAME = re.compile(r"[0-9]{4}_[a-z0-9_]+")


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Mark:
    """What the database remembers of one migration."""

    checksum: str
    applied_ms: int


def scripts(dialect: Dialect) -> list[Script]:
    found = [Script(path.stem, path.read_text("utf-8")) for path in sorted((_FILES / dialect).glob("*.sql"))]
    wrong = [script.name for script in found if _NAME.fullmatch(script.name) is None]
    if wrong or not found:
        raise WrongSchema(f"The migrations of this installation are damaged ({wrong or 'there are none'}).")
    return found


def pending(known: list[Script], marks: Mapping[str, Mark]) -> list[Script]:
    """What is still to be applied; WrongSchema if the database is not one of ours, or ahead of us."""
    refuse_unknown(known, marks)
    for script in known:
        mark = marks.get(script.name)
        if mark is not None and mark.checksum != script.checksum:
            raise WrongSchema(
                f"Migration {script.name} in the database is not the one of this release: its checksum differs, so "
                "the tables cannot be trusted to be what we expect."
            )
    return [script for script in known if script.name not in marks]


def refuse_unknown(known: list[Script], names: Iterable[str]) -> None:
    if newer := sorted(set(names) - {script.name for script in known}):
        raise WrongSchema(
            f"The database was changed by a newer Dragoman (it has migration {newer[-1]}, the last one known here is "
            f"{known[-1].name}): start that release, or restore a backup made before it."
        )


def overview(known: list[Script], marks: Mapping[str, Mark]) -> list[Migration]:
    """All we know and all the database has, in order."""
    names = sorted({script.name for script in known} | set(marks))
    return [Migration(name, marks[name].applied_ms if name in marks else None) for name in names]


def identified(identity: str | None) -> str:
    if identity is None:
        raise WrongSchema("The table identity of the database is empty: restore the database with all of its tables.")
    return identity
