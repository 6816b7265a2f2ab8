import asyncio
import threading
from collections import Counter
from typing import Any

import pytest
from structlog.testing import capture_logs

from dragoman.archive.types import User
from dragoman.protocol.chat import Reason
from dragoman.protocol.chat_http import Code, LoginData
from dragoman.services.chat import accounts as module
from dragoman.services.chat.accounts import HASHES_AT_ONCE, MAX_WAITING, Accounts, Denied
from dragoman.services.chat.tokens import Access, Tokens
from dragoman.store.errors import RedisAway

SECRET = "a-secret-of-more-than-thirty-two-bytes"


class Table:
    """The archive's users, in memory."""

    def __init__(self) -> None:
        self.rows: dict[str, User] = {}
        self.hidden: set[str] = set()  # not seen by a look, as if created at this moment

    async def user_by_name(self, name: str) -> User | None:
        return None if name in self.hidden else self.rows.get(name)

    async def create_user(self, name: str, password_hash: str) -> User:
        return self.rows.setdefault(name, User(len(self.rows) + 1, name, password_hash))


class House:
    def __init__(self) -> None:
        self.now, self.table = 1_700_000_000.0, Table()
        self.versions: Counter[int] = Counter()
        self.redis_is_away = False
        self.tried: list[tuple[str, str]] = []
        self.tries_left = 1000
        self.tokens = Tokens((SECRET,), "mini-im", 60, 600)
        self.accounts = Accounts(
            self.table,
            self.tokens,
            session_version=self.session_version,
            raise_session_version=self.raise_session_version,
            may_try=self.may_try,
            clock=lambda: self.now,
            monotonic=lambda: self.now,
        )

    async def session_version(self, uid: int) -> int:
        if self.redis_is_away:
            raise RedisAway("not connected")
        return self.versions[uid]

    async def may_try(self, address: str, name: str) -> bool:
        if self.redis_is_away:
            raise RedisAway("not connected")
        self.tried.append((address, name))
        self.tries_left -= 1
        return self.tries_left >= 0

    async def raise_session_version(self, uid: int) -> int:
        self.versions[uid] += 1
        return await self.session_version(uid)

    async def login(self, name: str | None = "alice", password: str | None = "pw", address: str = "::1") -> LoginData:
        return await self.accounts.login(address, name, password)

    async def denied(self, *given: Any, **named: Any) -> Denied:
        with pytest.raises(Denied) as denied:
            await self.login(*given, **named)
        return denied.value


@pytest.fixture
def house() -> House:
    return House()


async def test_an_unknown_user_is_created_and_known_from_then_on(house: House) -> None:
    first, second = await house.login(), await house.login()
    assert first.user_id == second.user_id == "1"
    assert (first.access_token_expires_in_seconds, first.refresh_token_expires_in_seconds) == (60, 600)
    assert list(house.table.rows) == ["alice"]
    assert house.table.rows["alice"].password_hash.startswith("$argon2id$")


async def test_a_wrong_password_is_denied_without_a_hint(house: House) -> None:
    await house.login()
    denied = await house.denied(password="other")
    assert (denied.code, denied.message) == (Code.UNAUTHORIZED, "wrong username or password")
    assert house.versions[1] == 1


async def test_a_hash_that_is_none_of_ours_matches_nothing(house: House) -> None:
    house.table.rows["alice"] = User(1, "alice", "plain")
    assert (await house.denied(password="plain")).code is Code.UNAUTHORIZED


async def test_of_two_who_create_a_name_the_second_needs_the_password_of_the_first(house: House) -> None:
    await house.login()
    house.table.hidden.add("alice")
    assert (await house.login(password="pw")).user_id == "1"
    assert (await house.denied(password="other")).code is Code.UNAUTHORIZED


@pytest.mark.parametrize(
    ("name", "password", "sentence"),
    [
        (None, "pw", "username is missing"),
        ("", "pw", "username is missing"),
        ("  ", "pw", "username is missing"),
        ("x" * 65, "pw", "username is longer than 64 characters"),
        ("a\nb", "pw", "username holds characters that cannot be shown"),
        ("a\0b", "pw", "username holds characters that cannot be shown"),
        ("alice", None, "password is missing"),
        ("alice", "", "password is missing"),
        ("alice", "x" * 257, "password is longer than 256 characters"),
    ],
)
async def test_what_cannot_be_a_name_or_a_password_is_said(
    house: House, name: str | None, password: str | None, sentence: str
) -> None:
    denied = await house.denied(name, password)
    assert (denied.code, denied.message) == (Code.BAD_REQUEST, sentence)


async def test_names_and_passwords_are_of_any_script(house: House) -> None:
    await house.login("爱丽丝 😀", "密码 \x01 😀")
    await house.login("  爱丽丝 😀 ", "密码 \x01 😀")
    assert list(house.table.rows) == ["爱丽丝 😀"]


async def test_the_sixth_login_within_a_minute_is_one_too_many_for_that_user_and_address(house: House) -> None:
    for _ in range(5):
        await house.login()
    assert (await house.denied()).code is Code.TOO_MANY_REQUESTS
    await house.login(address="10.0.0.1")
    await house.login("bob")
    house.now += 12
    await house.login()


async def test_tries_at_other_instances_count_and_who_is_told_to_wait_here_is_not_asked_about(house: House) -> None:
    house.tries_left = 2
    for _ in range(2):
        await house.login()
    assert (await house.denied()).code is Code.TOO_MANY_REQUESTS
    assert house.tried == [("::1", "alice")] * 3
    house.tries_left = 1000
    for _ in range(2):
        await house.login()
    assert (await house.denied()).code is Code.TOO_MANY_REQUESTS
    assert len(house.tried) == 5


async def test_with_redis_away_tries_are_counted_here(house: House) -> None:
    house.redis_is_away = True
    for _ in range(5):
        with pytest.raises(RedisAway):  # the session version could not be raised
            await house.login()
    assert (await house.denied()).code is Code.TOO_MANY_REQUESTS


async def test_known_and_unknown_names_cost_one_hash_each(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def hashed(password: str) -> str:
        done.append("hash")
        return f"hash of {password}"

    def matches(*_: str) -> bool:
        done.append("verify")
        return True

    monkeypatch.setattr(module, "_hash", hashed)
    monkeypatch.setattr(module, "_matches", matches)
    await house.login()
    assert done == ["hash"]
    await house.login()
    assert done == ["hash", "verify"]


async def test_hashing_is_done_aside_and_one_at_a_time(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, may_go, running, most = threading.Lock(), threading.Event(), 0, 0

    def slow(_: str) -> str:
        nonlocal running, most
        with lock:
            running, most = running + 1, max(most, running + 1)
        may_go.wait(60)
        with lock:
            running -= 1
        return f"hash {id(object())}"

    monkeypatch.setattr(module, "_hash", slow)
    monkeypatch.setattr(module, "_matches", lambda *_: True)
    logins = [asyncio.ensure_future(house.login(f"user{n}")) for n in range(MAX_WAITING)]
    await asyncio.sleep(0)
    denied = await house.denied("one too many")
    assert (denied.code, denied.message) == (Code.FAILED, "too many logins at once: try again in a moment")
    may_go.set()
    await asyncio.gather(*logins)
    assert most == HASHES_AT_ONCE == 1
    await house.login("and now again")


# ---------------------------------------------------------------- sessions


async def test_a_login_ends_the_sessions_before_it(house: House) -> None:
    first = await house.login()
    second = await house.login()
    assert await house.accounts.identify(first.access_token) is Reason.SESSION_INVALID
    assert isinstance(await house.accounts.identify(second.access_token), Access)


async def test_a_refresh_token_makes_access_tokens_of_its_session(house: House) -> None:
    login = await house.login()
    house.now += 59
    fresh = await house.accounts.refresh(login.refresh_token)
    assert (fresh.user_id, fresh.access_token_expires_in_seconds) == ("1", 60)
    house.now += 59
    assert await house.accounts.identify(login.access_token) is Reason.TOKEN_EXPIRED
    assert await house.accounts.identify(fresh.access_token) == Access(1, 1, house.now + 1)


async def test_a_refresh_token_of_an_older_session_is_denied(house: House) -> None:
    first = await house.login()
    await house.login()
    with pytest.raises(Denied, match="session is over") as denied:
        await house.accounts.refresh(first.refresh_token)
    assert denied.value.code is Code.UNAUTHORIZED


@pytest.mark.parametrize(
    ("token", "code"), [(None, Code.BAD_REQUEST), ("", Code.BAD_REQUEST), ("x", Code.UNAUTHORIZED)]
)
async def test_what_is_no_refresh_token_is_denied(house: House, token: str | None, code: Code) -> None:
    with pytest.raises(Denied, match="refreshToken") as denied:
        await house.accounts.refresh(token)
    assert denied.value.code is code


async def test_access_and_refresh_tokens_do_not_stand_for_each_other(house: House) -> None:
    login = await house.login()
    with pytest.raises(Denied, match="no refresh token"):
        await house.accounts.refresh(login.access_token)
    assert await house.accounts.identify(login.refresh_token) is Reason.INVALID_TOKEN


async def test_a_refresh_token_expires(house: House) -> None:
    login = await house.login()
    house.now += 600
    with pytest.raises(Denied, match="has expired"):
        await house.accounts.refresh(login.refresh_token)


async def test_verify_says_whose_token_it_is_or_why_nobodys(house: House) -> None:
    first = await house.login()
    verdict = await house.accounts.verify(first.access_token)
    assert (verdict.ok, verdict.user_id, verdict.reason) == (True, "1", None)
    await house.login()
    for token, reason in ((None, "missing_token"), ("x", "invalid_token"), (first.access_token, "session_invalid")):
        verdict = await house.accounts.verify(token)
        assert (verdict.ok, verdict.user_id, verdict.reason) == (False, None, reason)
    house.now += 60
    assert (await house.accounts.verify(first.access_token)).reason == "token_expired"


async def test_a_token_of_a_user_that_never_logged_in_is_good(house: House) -> None:
    assert isinstance(await house.accounts.identify(house.tokens.access(77, 0, house.now)), Access)


async def test_a_redis_that_forgot_the_versions_locks_nobody_out(house: House) -> None:
    login = await house.login()
    house.versions.clear()
    assert isinstance(await house.accounts.identify(login.access_token), Access)


async def test_with_redis_away_tokens_count_and_logins_fail(house: House) -> None:
    login = await house.login()
    house.redis_is_away = True
    assert isinstance(await house.accounts.identify(login.access_token), Access)
    assert (await house.accounts.refresh(login.refresh_token)).user_id == "1"
    with pytest.raises(RedisAway):
        await house.login()


async def test_no_password_and_no_token_is_logged_or_in_an_exception(house: House) -> None:
    with capture_logs() as logs:
        login = await house.login(password="very-secret-word")
        denied = await house.denied(password="other-secret-word")
        await house.accounts.verify(login.access_token)
    told = repr(logs) + repr(denied)
    assert "secret-word" not in told
    assert login.access_token not in told
