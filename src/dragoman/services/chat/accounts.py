"""Login, refresh and verify: from a name and a password to tokens, and from tokens to a user; accounts for operators.

- `Registration` says whether an unknown name becomes an account: always, never, or with an invite code. A
  refused login costs one argon2 and has the same answer whether the name exists or not.
- A login raises the user's session version: tokens of earlier ones are over. A token counts as over when its version
  is below the present one; a Redis that lost the versions locks no user out.
- Attempts are counted here and, through Redis, for all instances (`LoginLimits`).
- While Redis is unavailable attempts are counted here alone, and a login fails, since older tokens could not be ended.
  Refresh and verify go by the token alone, as the connections do.

Passwords and tokens are in no log line and in no exception.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import structlog

from dragoman.archive.types import User
from dragoman.domain.chat.rules import WRONG, Registration
from dragoman.domain.limits.rates import RatePerKey
from dragoman.protocol.chat import Reason
from dragoman.protocol.chat_http import Code, LoginData, RefreshData, VerifyData
from dragoman.services.chat.credentials import UNKNOWN_USER_HASH, Access, BadToken, Hashing, Overloaded, Tokens
from dragoman.store.attempts import LoginVerdict
from dragoman.store.errors import StoreError

log = structlog.get_logger(__name__)

MAX_USERNAME: Final = 64
MAX_PASSWORD: Final = 256
OPERATORS: Final = "operators"  # instead of an address, in the queue of hashes

_TOO_OFTEN: Final = {
    LoginVerdict.ADDRESS: "too many logins of this user from this address: wait a minute",
    LoginVerdict.NAME: "too many failed logins of this user from addresses that never logged in as this user: wait "
    "some minutes, or log in from an address you have used before",
}


class Denied(Exception):
    """The answer is no; a code of the protocol, and a sentence for the user."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class UserTable(Protocol):
    """What accounts need of the archive."""

    async def user_by_name(self, name: str) -> User | None: ...

    async def create_user(self, name: str, password_hash: str) -> User: ...

    async def set_password(self, user: int, password_hash: str) -> bool: ...

    async def remove_user(self, user: int) -> bool: ...


class LoginLimits(Protocol):
    """Attempts of the whole cluster; raises StoreError."""

    async def take(self, address: str, name: str) -> LoginVerdict: ...

    async def succeeded(self, address: str, name: str) -> None: ...


class InviteCodes(Protocol):
    """Codes that each create one account; raises StoreError."""

    async def make(self, ttl_s: int) -> str: ...

    async def exists(self, code: str) -> bool: ...

    async def claim(self, code: str) -> int: ...

    async def restore(self, code: str, ttl_ms: int) -> None: ...


Version = Callable[[int], Awaitable[int]]


class Accounts:
    def __init__(
        self,
        users: UserTable,
        tokens: Tokens,
        *,
        session_version: Version,
        raise_session_version: Version,
        end_all_sessions: Version,
        registration: Registration | None = None,
        invites: InviteCodes | None = None,
        limits: LoginLimits | None = None,
        logins_per_minute: int = 5,
        max_waiting: int = 64,
        on_refused: Callable[[str], None] = lambda reason: None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._users, self._tokens = users, tokens
        self._session_version, self._raise_session_version = session_version, raise_session_version
        self._end_all_sessions = end_all_sessions
        self._registration, self._invites = registration or Registration(), invites
        self._attempts, self._limits = RatePerKey(logins_per_minute), limits
        self._on_refused, self._clock, self._monotonic = on_refused, clock, monotonic
        self._hashing = Hashing(max_waiting)

    async def login(
        self, address: str, username: str | None, password: str | None, invite: str | None = None
    ) -> LoginData:
        """Raises Denied; ArchiveError and StoreError pass through."""
        name, secret = _checked(username, password)
        await self._count_attempt(address, name)
        try:
            user = await self._user(address, name, secret, (invite or "").strip())
        except Overloaded:
            raise self._refused("queue", Code.FAILED, "too many logins at once: try again in a moment") from None
        if self._tokens.is_user_revoked(user.id, self._clock()):
            raise self._refused("revoked", Code.FORBIDDEN, "an operator has revoked the access of this user")
        version = await self._raise_session_version(user.id)
        if self._limits is not None:
            await self._limits.succeeded(address, name)
        now = self._clock()
        return LoginData(
            user_id=str(user.id),
            access_token=self._tokens.access(user.id, version, now),
            refresh_token=self._tokens.refresh(user.id, version, now),
            access_token_expires_in_seconds=int(self._tokens.access_ttl_s),
            refresh_token_expires_in_seconds=int(self._tokens.refresh_ttl_s),
        )

    async def _count_attempt(self, address: str, name: str) -> None:
        """Here first: an attempt that is refused here need not be counted in Redis."""
        verdict = LoginVerdict.OK if self._attempts.take((address, name), self._monotonic()) else LoginVerdict.ADDRESS
        if verdict is LoginVerdict.OK and self._limits is not None:
            try:
                verdict = await self._limits.take(address, name)
            except StoreError:
                return
        if verdict is not LoginVerdict.OK:
            raise self._refused(verdict.value, Code.TOO_MANY_REQUESTS, _TOO_OFTEN[verdict])

    def _refused(self, reason: str, code: Code, message: str) -> Denied:
        self._on_refused(reason)
        return Denied(code, message)

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
        """The user of the token, or why it is not valid."""
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

    # -- from a name to a user -------------------------------------------------------------------

    async def _user(self, address: str, name: str, password: str, invite: str) -> User:
        policy = self._registration.policy
        user = await self._users.user_by_name(name)
        if user is None and policy == "open":
            return await self._create(address, name, password)
        hashed = user.password_hash if user is not None else UNKNOWN_USER_HASH
        if await self._hashing.matches(address, hashed, password) and user is not None:
            return self._not_guessable(user, name, password)
        if policy != "invite" or not invite or self._invites is None:
            raise self._refused("password", Code.UNAUTHORIZED, self._registration.refusal)
        # Checked whether the name exists or not, so that the answer does not reveal it.
        if not await self._invites.exists(invite):
            raise self._refused("invite", Code.FORBIDDEN, "the invite code is not valid: it was used, or has expired")
        if user is not None:
            raise self._refused("password", Code.UNAUTHORIZED, WRONG)
        return await self._create_invited(address, name, password, invite)

    def _not_guessable(self, user: User, name: str, password: str) -> User:
        if self._registration.is_guessable(name, password):
            sentence = "the password of this account can be guessed: an operator has to set another"
            raise self._refused("guessable", Code.FORBIDDEN, sentence)
        return user

    async def _create(self, address: str, name: str, password: str) -> User:
        hashed = await self._hash_new(address, name, password)
        user = await self._users.create_user(name, hashed)
        if user.password_hash == hashed:
            log.info("a chat account was created", user=user.id)
            return user
        # Another login created it in the meantime.
        if not await self._hashing.matches(address, user.password_hash, password):
            raise self._refused("password", Code.UNAUTHORIZED, self._registration.refusal)
        return user

    async def _create_invited(self, address: str, name: str, password: str, invite: str) -> User:
        """The code is spent before the account exists, so that two logins cannot share it, and restored if it fails."""
        assert self._invites is not None
        hashed = await self._hash_new(address, name, password)
        ttl_ms = await self._invites.claim(invite)
        if not ttl_ms:
            raise self._refused("invite", Code.FORBIDDEN, "the invite code is not valid: it was used, or has expired")
        created = False
        try:
            user = await self._users.create_user(name, hashed)
            created = user.password_hash == hashed
        finally:
            if not created:
                await self._invites.restore(invite, ttl_ms)
        if not created:
            raise self._refused("password", Code.UNAUTHORIZED, WRONG)
        log.info("a chat account was created by an invite", user=user.id)
        return user

    async def _hash_new(self, address: str, name: str, password: str) -> str:
        if objection := self._registration.objection(name, password):
            raise self._refused("weak_password", Code.BAD_REQUEST, objection)
        return await self._hashing.hash(address, password)

    # -- what operators do -----------------------------------------------------------------------

    async def add(self, username: str | None, password: str | None) -> User | None:
        """A new account, whatever `chat.registration` says; None if the name is taken. Raises Denied, Overloaded."""
        name, secret = _checked(username, password)
        hashed = await self._hash_new(OPERATORS, name, secret)
        user = await self._users.create_user(name, hashed)
        return user if user.password_hash == hashed else None

    async def set_password(self, name: str, password: str | None) -> int | None:
        """Also ends the user's sessions; the user's id, None if there is no such name. Raises Denied, Overloaded."""
        user = await self._users.user_by_name(name)
        if user is None:
            return None
        _, secret = _checked(name, password)
        if not await self._users.set_password(user.id, await self._hash_new(OPERATORS, name, secret)):
            return None
        await self._end_all_sessions(user.id)
        return user.id

    async def remove(self, name: str) -> int | None:
        """No login and no token of this user is good any more; the user's id, None if there is no such name.

        Sessions are ended before, so that nothing is removed while Redis is away, and after, for a login in between.
        """
        user = await self._users.user_by_name(name)
        if user is None:
            return None
        await self._end_all_sessions(user.id)
        if not await self._users.remove_user(user.id):
            return None
        await self._end_all_sessions(user.id)
        return user.id

    async def invite(self, ttl_s: int) -> str | None:
        """A code for one new account; None where codes are not used."""
        return await self._invites.make(ttl_s) if self._invites and self._registration.policy == "invite" else None


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
