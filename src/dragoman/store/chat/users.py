"""Chat users in Redis: owner keys, session versions, early receipts, and notices for users that are not connected."""

import asyncio
from collections.abc import Sequence

from dragoman.store.instances import DELETE_IF_EQUAL, RENEW_IF_EQUAL
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.store.script import Script

PARK_EARLY_RECEIPTS = Script.beside(__file__, "park_early_receipts")
DROP_EARLY_RECEIPTS = Script.beside(__file__, "drop_early_receipts")
RESTORE_OWNER = Script.beside(__file__, "restore_owner")
KEEP_NOTICE = Script.beside(__file__, "keep_notice")
RAISE_SESSION_VERSION = Script.beside(__file__, "raise_session_version")
DROP_NOTICES = Script.beside(__file__, "drop_notices")

EARLY_TTL_MS = 3_600_000
MAX_EARLY_RECEIPTS = 10_000
NOTICE_TTL_MS = 7 * 86_400_000
MAX_NOTICES = 1000
TOKEN_TTL_MS = 31 * 86_400_000
MAX_TOKEN_TTL_MS = 3650 * 86_400_000


class Users:
    def __init__(self, redis: Redis, keys: Keys, ttl_ms: int, token_ttl_ms: int = TOKEN_TTL_MS) -> None:
        """`token_ttl_ms`: no token of a login, refreshed ones included, is valid longer than this."""
        self.redis, self.keys, self.ttl_ms, self._token_ttl_ms = redis, keys, ttl_ms, token_ttl_ms

    # -- owner keys: which connection a user has --------------------------------------------------

    async def swap_owner(self, user: int, owner: str) -> str:
        """Write the owner of the user's connection; returns the one before, or ''."""
        before = await self.redis.call("SET", self.keys.user_owner(user), owner, "PX", self.ttl_ms, "GET")
        return before.decode() if before is not None else ""

    async def disown(self, user: int, owner: str) -> None:
        await DELETE_IF_EQUAL(self.redis, key=self.keys.user_owner(user), value=owner)

    async def restore_owner(self, user: int, owner: str, former: str) -> bool:
        """Undo `swap_owner`. False: a newer connection owns the user."""
        key = self.keys.user_owner(user)
        return bool(await RESTORE_OWNER(self.redis, owner=key, value=owner, former=former, ttl=self.ttl_ms) != b"OTHER")

    def owner(self, user: int) -> "asyncio.Future[bytes | None]":
        """`instance|connection`; on its way when this returns."""
        return self.redis.call("GET", self.keys.user_owner(user))

    async def owners(self, users: Sequence[int]) -> list[str]:
        """`instance|connection` of each, '' for a user that is not connected."""
        found = await self.redis.get_each([self.keys.user_owner(user) for user in users])
        return [(owner or b"").decode() for owner in found]

    async def renew(self, user: int, owner: str) -> str:
        """'OK', 'OTHER' (the user is connected elsewhere by now) or 'NONE' (the key is gone)."""
        key = self.keys.user_owner(user)
        return str((await RENEW_IF_EQUAL(self.redis, key=key, value=owner, ttl=self.ttl_ms)).decode())

    async def own_again(self, user: int, owner: str) -> bool:
        """Write a key that is gone. False: the user is connected elsewhere by now."""
        return bool(await self.redis.call("SET", self.keys.user_owner(user), owner, "NX", "PX", self.ttl_ms))

    # -- session versions ------------------------------------------------------------------------

    async def session_version(self, user: int) -> int:
        return int(await self.redis.call("GET", self.keys.session_version(user)) or 0)

    async def session_versions(self, users: Sequence[int]) -> list[int]:
        found = await self.redis.get_each([self.keys.session_version(user) for user in users])
        return [int(version or 0) for version in found]

    async def raise_session_version(self, user: int) -> int:
        """For a login. The version goes when no token of an earlier login can be valid any more."""
        return await self._raise(user, self._token_ttl_ms)

    async def end_all_sessions(self, user: int) -> int:
        """For an operator: tokens that `dragoman token` or a backend made for years are over as well."""
        return await self._raise(user, MAX_TOKEN_TTL_MS)

    async def _raise(self, user: int, ttl_ms: int) -> int:
        return int(await RAISE_SESSION_VERSION(self.redis, version=self.keys.session_version(user), ttl=ttl_ms))

    # -- receipts that came before the row -------------------------------------------------------

    async def park_early(self, user: int, receipts: Sequence[tuple[int, int]]) -> None:
        flat, early = [part for pair in receipts for part in pair], self.keys.early(user)
        limits = {"max_receipts": MAX_EARLY_RECEIPTS, "ttl": EARLY_TTL_MS}
        await PARK_EARLY_RECEIPTS(self.redis, early=early, **limits, receipts=flat)

    async def early(self, user: int, ids: Sequence[int] | None = None) -> list[tuple[int, int]]:
        """Those for these messages, or all. They stay until `drop_early`."""
        key = self.keys.early(user)
        if ids is None:
            flat = await self.redis.call("HGETALL", key)
            return [(int(id), int(status)) for id, status in zip(flat[::2], flat[1::2], strict=True)]
        found = await self.asking_early(user, ids) if ids else []
        return [(id, int(status)) for id, status in zip(ids, found, strict=True) if status is not None]

    def asking_early(self, user: int, ids: Sequence[int]) -> "asyncio.Future[list[bytes | None]]":
        """Their status by id, or None; on its way when this returns."""
        return self.redis.call("HMGET", self.keys.early(user), *ids)

    async def drop_early(self, user: int, written: Sequence[tuple[int, int]]) -> None:
        flat = [part for pair in written for part in pair]
        await DROP_EARLY_RECEIPTS(self.redis, early=self.keys.early(user), written=flat)

    # -- notices for senders that are not connected ----------------------------------------------

    async def keep_notice(self, user: int, frame: bytes) -> None:
        """Until its next AUTH. None is lost if the user connects at the same moment."""
        notices, limits = self.keys.failed(user), {"max_notices": MAX_NOTICES, "ttl": NOTICE_TTL_MS}
        await KEEP_NOTICE(self.redis, notices=notices, frame=frame, **limits)

    async def notices(self, user: int) -> list[bytes]:
        """They stay until `drop_notices`."""
        return list(await self.redis.call("LRANGE", self.keys.failed(user), 0, -1))

    async def drop_all_notices(self, user: int) -> int:
        """How many there were."""
        key = self.keys.failed(user)
        count, _ = await asyncio.gather(self.redis.call("LLEN", key), self.redis.call("UNLINK", key))
        return int(count)

    async def drop_notices(self, user: int, sent: Sequence[bytes]) -> None:
        await DROP_NOTICES(self.redis, notices=self.keys.failed(user), sent=sent)


class Translating:
    def __init__(self, redis: Redis, keys: Keys, instance: str, ttl_ms: int) -> None:
        self.redis, self.keys, self._instance, self._ttl_ms = redis, keys, instance, ttl_ms

    async def begin(self, message: int, lang: str) -> bool:
        """False: an instance does it already."""
        key = self.keys.translating(message, lang)
        return bool(await self.redis.call("SET", key, self._instance, "NX", "PX", self._ttl_ms))

    async def end(self, message: int, lang: str) -> None:
        await DELETE_IF_EQUAL(self.redis, key=self.keys.translating(message, lang), value=self._instance)
