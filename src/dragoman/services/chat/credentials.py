"""Chat tokens and passwords. Tokens are JWTs signed with HS256, checked against the present and the previous secret.

Claims: `iss`, `iat`, `exp`, `uid` (number), `typ` (access or refresh), `sv` (session version, missing = 0) and `jti`
(by which it can be revoked; if it has none, by a digest). Others may make access tokens as well, so nothing beyond
these is asked of one, and claims that are not ours mean nothing; but for
`iat` and `nbf`: a token that says it is from tomorrow is not for today.
Whether a session version is still the present one is not written in a token: `Accounts` and the connection ask Redis.
`now` is wall-clock seconds. There is no leeway: a token is good until `exp` and not a moment longer. Only its beginning
has one, because whose clock is a little ahead makes tokens that begin a little late.
"""

import asyncio
import math
import os
import secrets as random
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

import jwt
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from dragoman.domain.limits.fair_queue import FairQueue
from dragoman.domain.revocation import RevocationList, SigningKeys, token_name, user_name
from dragoman.protocol.chat import MAX_ID

AHEAD_S: Final = 60.0
JTI_BYTES: Final = 12

Typ = Literal["access", "refresh"]

_ONLY_THE_SIGNATURE: Final[Any] = {
    "verify_aud": False,
    "verify_exp": False,  # against `now`, below
    "verify_iat": False,
    "verify_jti": False,
    "verify_nbf": False,
    "verify_sub": False,
}


class BadToken(Exception):
    """Not a token of ours, or not any more; the sentence never quotes it."""

    def __init__(self, message: str, *, expired: bool = False, revoked: bool = False) -> None:
        super().__init__(message)
        self.expired, self.revoked = expired, revoked


@dataclass(frozen=True, slots=True)
class Access:
    uid: int
    sv: int
    exp: float
    token: str = field(default="", compare=False)  # the name by which it can be revoked


class Tokens:
    def __init__(
        self,
        secrets: Iterable[str],
        issuer: str,
        access_ttl_s: float,
        refresh_ttl_s: float,
        revoked: RevocationList | None = None,
    ) -> None:
        """`secrets`: the first signs, all of them are accepted; empty ones do not count."""
        self._revoked = revoked if revoked is not None else RevocationList()
        self.signing_keys = SigningKeys(secrets)
        if not self.signing_keys:
            raise ValueError("tokens need a secret to be signed with")
        self._issuer = issuer
        self.access_ttl_s, self.refresh_ttl_s = access_ttl_s, refresh_ttl_s

    def access(self, uid: int, sv: int, now: float) -> str:
        return self._make(uid, sv, "access", now, self.access_ttl_s)

    def refresh(self, uid: int, sv: int, now: float) -> str:
        return self._make(uid, sv, "refresh", now, self.refresh_ttl_s)

    def read_access(self, token: str, now: float) -> Access:
        return self._read(token, "access", now)

    def read_refresh(self, token: str, now: float) -> Access:
        return self._read(token, "refresh", now)

    def _make(self, uid: int, sv: int, typ: Typ, now: float, ttl_s: float) -> str:
        claims = {"iss": self._issuer, "iat": int(now), "exp": math.ceil(now + ttl_s), "uid": uid, "typ": typ, "sv": sv}
        claims["jti"] = random.token_urlsafe(JTI_BYTES)
        return jwt.encode(claims, self.signing_keys.signing, algorithm="HS256")

    def _read(self, token: str, typ: Typ, now: float) -> Access:
        claims = self._claims(token)
        if claims.get("typ") != typ:
            raise BadToken(f"the token is no {typ} token")
        uid, sv, exp = claims.get("uid"), claims.get("sv"), claims.get("exp")
        if type(uid) is not int or not 0 < uid <= MAX_ID:
            raise BadToken("the token names no user")
        if sv is None:
            sv = 0
        if type(sv) is not int or sv < 0:
            raise BadToken("the session version of the token is no number")
        if not isinstance(exp, int | float):
            raise BadToken("the token does not say when it expires")
        if not now < exp:
            raise BadToken("the token has expired", expired=True)
        if any(_is_after(claims.get(name), now + AHEAD_S) for name in ("iat", "nbf")):
            raise BadToken("the token is not valid yet")
        access = Access(uid, sv, exp, token_name(token, claims.get("jti")))
        if self._revoked.is_revoked(access.token, user_name(uid), now=now):
            raise BadToken("the token has been revoked", revoked=True)
        return access

    def is_user_revoked(self, uid: int, now: float) -> bool:
        return self._revoked.is_revoked(user_name(uid), now=now)

    def _claims(self, token: str) -> dict[str, Any]:
        for secret in self.signing_keys:
            try:
                return jwt.decode(token, secret, algorithms=["HS256"], issuer=self._issuer, options=_ONLY_THE_SIGNATURE)
            except (jwt.PyJWTError, ValueError, RecursionError):  # the last two: texts that were never a token
                continue
        raise BadToken("the token is not valid")


def _is_after(claim: object, when: float) -> bool:
    return isinstance(claim, int | float) and claim > when


# -- hashing ---------------------------------------------------------------------------------------
#
# Passwords: argon2 in a thread, one at a time, in a queue that addresses share fairly.
#
# One at a time and at a low priority, so that a flood of logins does not take the cores from speech and chat. Clients
# of one address that fill the queue delay those of another address by one hash.

# 19 MiB, two passes, one lane: tens of ms of one core.
_hasher = PasswordHasher(time_cost=2, memory_cost=19456, parallelism=1)
# Of an unknown password. An unknown name is checked against it, so that it takes as long as a known one.
UNKNOWN_USER_HASH: Final = (
    "$argon2id$v=19$m=19456,t=2,p=1$0BzwWF4PZzo3UUPC+mvIAQ$EcQ3B9rnR9pVGxloaYWxgvTMyRAZ/kKiXrHRidKv0go"
)

_T = TypeVar("_T")


class Overloaded(Exception):
    """Too many passwords wait to be checked."""


def _lower_priority() -> None:
    """Of this thread. Elsewhere than on Linux it would be that of the process."""
    if sys.platform == "linux":
        os.nice(10)


class Hashing:
    def __init__(self, max_waiting: int = 64) -> None:
        """`max_waiting` includes the one that runs."""
        self._queue: FairQueue[asyncio.Future[bool]] = FairQueue(max_waiting - 1)
        self._busy = False
        self._thread = ThreadPoolExecutor(1, "password", _lower_priority)

    async def hash(self, address: str, password: str) -> str:
        """Raises Overloaded."""
        return await self._run(address, _hash, password)

    async def matches(self, address: str, hashed: str, password: str) -> bool:
        """Raises Overloaded."""
        return await self._run(address, _matches, hashed, password)

    async def _run(self, address: str, work: Callable[..., _T], *args: str) -> _T:
        if self._busy:
            await self._wait(address)
        self._busy = True
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)
        finally:
            self._next()

    async def _wait(self, address: str) -> None:
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        displaced = self._queue.push(address, turn)
        if displaced is not None:
            displaced.set_result(False)
        try:
            if not await turn:
                raise Overloaded
        except asyncio.CancelledError:
            self._queue.remove(address, turn)
            if turn.done() and not turn.cancelled() and turn.result():
                self._next()
            raise

    def _next(self) -> None:
        """Stays busy when it hands the turn on, so that a newcomer cannot take it."""
        turn = self._queue.pop()
        while turn is not None and turn.done():
            turn = self._queue.pop()
        if turn is None:
            self._busy = False
        else:
            turn.set_result(True)


def _hash(password: str) -> str:
    return _hasher.hash(password)


def _matches(hashed: str, password: str) -> bool:
    try:
        return _hasher.verify(hashed, password)
    except (VerificationError, InvalidHashError):
        return False
