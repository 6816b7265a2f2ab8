"""The list of revoked tokens and principals that all instances share: bounded, and read whole only when it changed."""

from collections.abc import Iterable
from typing import Final

import msgspec

from dragoman.domain.revocation import Revocation
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.store.script import Script

ADD_REVOCATION = Script.beside(__file__, "add_revocation")
REMOVE_REVOCATION = Script.beside(__file__, "remove_revocation")
READ_REVOCATIONS = Script.beside(__file__, "read_revocations")

MAX_ENTRIES: Final = 10_000
PRUNE: Final = 100

_decode = msgspec.json.Decoder(Revocation).decode


class RevocationsFull(Exception):
    """The list has as many entries as it may have."""


class Revocations:
    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis, self._keys = redis, keys

    async def revoke(self, name: str, entry: Revocation) -> int:
        """The new version of the list. Raises RevocationsFull."""
        keys = self._keys
        version = await ADD_REVOCATION(
            self._redis,
            entries=keys.revoked,
            expiry=keys.revoked_expiry,
            version=keys.revoked_version,
            name=name,
            entry=msgspec.json.encode(entry),
            until_ms=entry.until_ms,
            limit=MAX_ENTRIES,
            prune=PRUNE,
        )
        if version == b"FULL":
            raise RevocationsFull
        return int(version)

    async def allow(self, name: str) -> int | None:
        """The new version of the list; None if the name is not on it."""
        keys = self._keys
        version = await REMOVE_REVOCATION(
            self._redis, entries=keys.revoked, expiry=keys.revoked_expiry, version=keys.revoked_version, name=name
        )
        return None if version == b"NONE" else int(version)

    async def read(self, known: int) -> tuple[int, list[tuple[str, Revocation]] | None]:
        """The version of the list, and the entries if it is another than `known`."""
        keys = self._keys
        version, *found = await READ_REVOCATIONS(
            self._redis, entries=keys.revoked, version=keys.revoked_version, known=known
        )
        return int(version), list(_entries(found[0])) if found else None


def _entries(flat: list[bytes]) -> Iterable[tuple[str, Revocation]]:
    for name, entry in zip(flat[::2], flat[1::2], strict=True):
        yield name.decode(), _decode(entry)
