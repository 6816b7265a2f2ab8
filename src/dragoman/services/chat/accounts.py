"""Login, refresh and verify: from a name and a password to tokens, and from tokens to a user.

- A name nobody has yet becomes an account with the password it came with. Either way a login costs one argon2, so its
  length does not tell which names exist.
- argon2 runs in a thread, one at a time, so that a flood of logins does not take the cores from those who chat; who
  would wait behind too many others is told to come back.
- A login raises the user's session version: tokens of earlier ones are over. A token counts as over when its version
  is below the present one; a Redis that forgot versions locks nobody out.
- Tries of a name from an address are counted here and, through Redis, for all instances; with Redis away, here alone.
- With Redis away a login fails, since older tokens could not be ended. Refresh and verify go by the token alone, as
  the connections do.

Passwords and tokens are in no log line and in no exception.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

import structlog
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from dragoman.archive.types import User
from dragoman.domain.chat.allowances import Allowances
from dragoman.protocol.chat import Reason
from dragoman.protocol.chat_http import Code, LoginData, RefreshData, VerifyData
from dragoman.services.chat.tokens import Access, BadToken, Tokens
from dragoman.store.errors import StoreError

log = structlog.get_logger(__name__)

MAX_USERNAME: Final = 64
MAX_PASSWORD: Final = 256
HASHES_AT_ONCE: Final = 1
MAX_WAITING: Final = 64

# 19 MiB, two passes, one lane: tens of ms of one core.
_hasher = PasswordHasher(time_cost=2, memory_cost=19456, parallelism=1)


class Denied(Exception):
    """The answer is no; a code of the protocol, and a sentence for the user."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class UserTable(Protocol):
    """What accounts need of the archive."""

    async def user_by_name(self, name: str) -> User | None: ...

    async def create_user(self, name: str, password_hash: str) -> User: ...


Version = Callable[[int], Awaitable[int]]
_T = TypeVar("_T")


class Accounts:
    def __init__(
        self,
        users: UserTable,
        tokens: Tokens,
        *,
        session_version: Version,
        raise_session_version: Version,
        logins_per_minute: int = 5,
        may_try: Callable[[str, str], Awaitable[bool]] | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._users, self._tokens = users, tokens
        self._session_version, self._raise_session_version = session_version, raise_session_version
        self._allowances, self._may_try = Allowances(logins_per_minute), may_try
        self._clock, self._monotonic = clock, monotonic
        self._hashing, self._waiting = asyncio.Semaphore(HASHES_AT_ONCE), 0

    async def login(self, address: str, username: str | None, password: str | None) -> LoginData:
        """Raises Denied; ArchiveError and StoreError pass through."""
        name, secret = _checked(username, password)
        if not await self._has_a_try(address, name):
            raise Denied(Code.TOO_MANY_REQUESTS, "too many logins of this user from this address: wait a minute")
        user = await self._user(name, secret)
        version = await self._raise_session_version(user.id)
        now = self._clock()
        return LoginData(
            user_id=str(user.id),
            access_token=self._tokens.access(user.id, version, now),
            refresh_token=self._tokens.refresh(user.id, version, now),
            access_token_expires_in_seconds=int(self._tokens.access_ttl_s),
            refresh_token_expires_in_seconds=int(self._tokens.refresh_ttl_s),
        )

    async def _has_a_try(self, address: str, name: str) -> bool:
        """Here first: who is told to wait here need not be asked about elsewhere."""
        if not self._allowances.take((address, name), self._monotonic()):
            return False
        try:
            return self._may_try is None or await self._may_try(address, name)
        except StoreError:
            return True

    async def refresh(self, refresh_token: str | None) -> RefreshData:
        """A new access token of the same session; raises Denied."""
        if not refresh_token:
            raise Denied(Code.BAD_REQUEST, "refreshToken is missing")
        try:
            session = self._tokens.read_refresh(refresh_token, self._clock())
        except BadToken as error:
            raise Denied(Code.UNAUTHORIZED, f"refreshToken: {error}") from None
        if await self._is_over(session):
            raise Denied(Code.UNAUTHORIZED, "this session is over: the user has logged in again")
        return RefreshData(
            user_id=str(session.uid),
            access_token=self._tokens.access(session.uid, session.sv, self._clock()),
            access_token_expires_in_seconds=int(self._tokens.access_ttl_s),
        )

    async def verify(self, access_token: str | None) -> VerifyData:
        """Whose token it is, or why it is nobody's."""
        outcome = await self.identify(access_token)
        if isinstance(outcome, Reason):
            return VerifyData(ok=False, reason=outcome.value)
        return VerifyData(ok=True, user_id=str(outcome.uid))

    async def identify(self, access_token: str | None) -> Access | Reason:
        """What an access token is worth now."""
        if not access_token:
            return Reason.MISSING_TOKEN
        try:
            access = self._tokens.read_access(access_token, self._clock())
        except BadToken as error:
            return Reason.TOKEN_EXPIRED if error.expired else Reason.INVALID_TOKEN
        return Reason.SESSION_INVALID if await self._is_over(access) else access

    async def _is_over(self, session: Access) -> bool:
        try:
            return session.sv < await self._session_version(session.uid)
        except StoreError:
            return False

    async def _user(self, name: str, password: str) -> User:
        user = await self._users.user_by_name(name)
        if user is None:
            hashed = await self._in_a_thread(_hash, password)
            user = await self._users.create_user(name, hashed)
            if user.password_hash == hashed:
                log.info("a chat account was created", user=user.id)
                return user
            # Somebody else created it in the meantime.
        if not await self._in_a_thread(_matches, user.password_hash, password):
            raise Denied(Code.UNAUTHORIZED, "wrong username or password")
        return user

    async def _in_a_thread(self, work: Callable[..., _T], *given: str) -> _T:
        if self._waiting >= MAX_WAITING:
            raise Denied(Code.FAILED, "too many logins at once: try again in a moment")
        self._waiting += 1
        try:
            async with self._hashing:
                return await asyncio.to_thread(work, *given)
        finally:
            self._waiting -= 1


def _checked(username: str | None, password: str | None) -> tuple[str, str]:
    name = (username or "").strip()
    if not name:
        raise Denied(Code.BAD_REQUEST, "username is missing")
    if len(name) > MAX_USERNAME:
        raise Denied(Code.BAD_REQUEST, f"username is longer than {MAX_USERNAME} characters")
    if not name.isprintable():
        raise Denied(Code.BAD_REQUEST, "username holds characters that cannot be shown")
    if not password:
        raise Denied(Code.BAD_REQUEST, "password is missing")
    if len(password) > MAX_PASSWORD:
        raise Denied(Code.BAD_REQUEST, f"password is longer than {MAX_PASSWORD} characters")
    return name, password


def _hash(password: str) -> str:
    return _hasher.hash(password)


def _matches(hashed: str, password: str) -> bool:
    try:
        return _hasher.verify(hashed, password)
    except (VerificationError, InvalidHashError):
        return False
