import asyncio
import os
import sys
import threading
from collections import Counter
from typing import Any

import pytest
from structlog.testing import capture_logs

from dragoman.archive import ArchiveAway
from dragoman.archive.types import User
from dragoman.domain.chat.rules import Registration, well_known
from dragoman.protocol.chat import Reason
from dragoman.protocol.chat_http import Code, LoginData
from dragoman.services.chat import credentials as module
from dragoman.services.chat.accounts import Accounts, Denied
from dragoman.services.chat.credentials import Access, Tokens
from dragoman.store.attempts import LoginVerdict
from dragoman.store.errors import RedisAway

SECRET = "a-secret-of-more-than-thirty-two-bytes"

QUEUE = 64  # limits.password_checks


class Table:
    """The archive's users, in memory."""

    def __init__(self) -> None:
        self.rows: dict[str, User] = {}
        self.is_away = False
        self.hidden: set[str] = set()  # not seen by a look, as if created at this moment

    async def user_by_name(self, name: str) -> User | None:
        return None if name in self.hidden else self.rows.get(name)

    async def create_user(self, name: str, password_hash: str) -> User:
        if self.is_away:
            raise ArchiveAway("not connected")
        return self.rows.setdefault(name, User(len(self.rows) + 1, name, password_hash))

    async def set_password(self, user: int, password_hash: str) -> bool:
        (row,) = [row for row in self.rows.values() if row.id == user]
        self.rows[row.name] = User(user, row.name, password_hash)
        return True

    async def remove_user(self, user: int) -> bool:
        (row,) = [row for row in self.rows.values() if row.id == user]
        del self.rows[row.name]
        return True


class Codes:
    """Invite codes, in memory."""

    def __init__(self) -> None:
        self.codes: dict[str, int] = {}

    async def make(self, ttl_s: int) -> str:
        self.codes["a code"] = ttl_s * 1000
        return "a code"

    async def exists(self, code: str) -> bool:
        return code in self.codes

    async def claim(self, code: str) -> int:
        return self.codes.pop(code, 0)

    async def restore(self, code: str, ttl_ms: int) -> None:
        self.codes[code] = ttl_ms


class Env:
    def __init__(self, registration: Registration | None = None) -> None:
        self.now, self.table = 1_700_000_000.0, Table()
        self.versions: Counter[int] = Counter()
        self.redis_is_away = False
        self.refusing = LoginVerdict.ADDRESS
        self.tried: list[tuple[str, str]] = []
        self.tries_left = 1000
        self.succeeded_at: list[tuple[str, str]] = []
        self.refusals: list[str] = []
        self.codes = Codes()
        self.tokens = Tokens((SECRET,), "mini-im", 60, 600)
        self.accounts = Accounts(
            self.table,
            self.tokens,
            session_version=self.session_version,
            raise_session_version=self.raise_session_version,
            end_all_sessions=self.raise_session_version,
            registration=registration,
            invites=self.codes,
            limits=self,
            on_refused=self.refusals.append,
            clock=lambda: self.now,
            monotonic=lambda: self.now,
        )

    async def session_version(self, uid: int) -> int:
        if self.redis_is_away:
            raise RedisAway("not connected")
        return self.versions[uid]

    async def take(self, address: str, name: str) -> LoginVerdict:
        if self.redis_is_away:
            raise RedisAway("not connected")
        self.tried.append((address, name))
        self.tries_left -= 1
        return LoginVerdict.OK if self.tries_left >= 0 else self.refusing

    async def succeeded(self, address: str, name: str) -> None:
        self.succeeded_at.append((address, name))

    async def raise_session_version(self, uid: int) -> int:
        self.versions[uid] += 1
        return await self.session_version(uid)

    async def login(
        self, name: str | None = "alice", password: str | None = "pw", address: str = "::1", invite: str = ""
    ) -> LoginData:
        return await self.accounts.login(address, name, password, invite)

    async def denied(self, *given: Any, **named: Any) -> Denied:
        with pytest.raises(Denied) as denied:
            await self.login(*given, **named)
        return denied.value


@pytest.fixture
def env() -> Env:
    return Env()


async def test_an_unknown_user_is_created_and_known_from_then_on(env: Env) -> None:
    first, second = await env.login(), await env.login()
    assert first.user_id == second.user_id == "1"
    assert (first.access_token_expires_in_seconds, first.refresh_token_expires_in_seconds) == (60, 600)
    assert list(env.table.rows) == ["alice"]
    assert env.table.rows["alice"].password_hash.startswith("$argon2id$")


async def test_a_wrong_password_is_denied_without_a_hint(env: Env) -> None:
    await env.login()
    denied = await env.denied(password="other")
    assert (denied.code, denied.message) == (Code.UNAUTHORIZED, "wrong username or password")
    assert env.versions[1] == 1


async def test_a_hash_that_is_none_of_ours_matches_nothing(env: Env) -> None:
    env.table.rows["alice"] = User(1, "alice", "plain")
    assert (await env.denied(password="plain")).code is Code.UNAUTHORIZED


async def test_second_creator_of_a_name_needs_the_password_of_the_first(env: Env) -> None:
    await env.login()
    env.table.hidden.add("alice")
    assert (await env.login(password="pw")).user_id == "1"
    assert (await env.denied(password="other")).code is Code.UNAUTHORIZED


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
async def test_invalid_name_or_password_is_refused_with_a_reason(
    env: Env, name: str | None, password: str | None, sentence: str
) -> None:
    denied = await env.denied(name, password)
    assert (denied.code, denied.message) == (Code.BAD_REQUEST, sentence)


async def test_names_and_passwords_are_of_any_script(env: Env) -> None:
    await env.login("爱丽丝 😀", "密码 \x01 😀")
    await env.login("  爱丽丝 😀 ", "密码 \x01 😀")
    assert list(env.table.rows) == ["爱丽丝 😀"]


async def test_the_sixth_login_within_a_minute_is_one_too_many_for_that_user_and_address(
    env: Env,
) -> None:
    for _ in range(5):
        await env.login()
    assert (await env.denied()).code is Code.TOO_MANY_REQUESTS
    await env.login(address="10.0.0.1")
    await env.login("bob")
    env.now += 12
    await env.login()


async def test_attempts_at_other_instances_count_and_a_local_refusal_asks_no_redis(
    env: Env,
) -> None:
    env.tries_left = 2
    for _ in range(2):
        await env.login()
    assert (await env.denied()).code is Code.TOO_MANY_REQUESTS
    assert env.tried == [("::1", "alice")] * 3
    env.tries_left = 1000
    for _ in range(2):
        await env.login()
    assert (await env.denied()).code is Code.TOO_MANY_REQUESTS
    assert len(env.tried) == 5


async def test_attempts_are_counted_locally_during_a_redis_outage(env: Env) -> None:
    env.redis_is_away = True
    for _ in range(5):
        with pytest.raises(RedisAway):  # the session version could not be raised
            await env.login()
    assert (await env.denied()).code is Code.TOO_MANY_REQUESTS


async def test_known_and_unknown_names_cost_one_hash_each(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def hashed(password: str) -> str:
        done.append("hash")
        return f"hash of {password}"

    def matches(*_: str) -> bool:
        done.append("verify")
        return True

    monkeypatch.setattr(module, "_hash", hashed)
    monkeypatch.setattr(module, "_matches", matches)
    await env.login()
    assert done == ["hash"]
    await env.login()
    assert done == ["hash", "verify"]


async def test_hashing_is_done_aside_and_one_at_a_time(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
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
    logins = [asyncio.ensure_future(env.login(f"user{n}")) for n in range(QUEUE)]
    await asyncio.sleep(0)
    denied = await env.denied("one too many")
    assert (denied.code, denied.message) == (Code.FAILED, "too many logins at once: try again in a moment")
    may_go.set()
    await asyncio.gather(*logins)
    assert most == 1
    await env.login("and now again")


@pytest.mark.skipif(sys.platform != "linux", reason="does not apply: threads have no priority of their own")
async def test_hash_gives_way_to_the_event_loop(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    priorities: list[int] = []

    def note(_: str) -> str:
        priorities.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return "hash"

    monkeypatch.setattr(module, "_hash", note)
    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    await env.login("ann")
    assert priorities == [min(before + 10, 19)]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before


async def test_an_address_that_fills_the_queue_of_hashes_does_not_refuse_or_delay_another(
    env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go, order = threading.Event(), []

    def slow(password: str) -> str:
        may_go.wait(60)
        order.append(password)
        return f"hash of {password}"

    monkeypatch.setattr(module, "_hash", slow)
    attack = [asyncio.ensure_future(env.login(f"eve{n}", "attack", "203.0.113.7")) for n in range(100)]
    await asyncio.sleep(0)
    honest = [asyncio.ensure_future(env.login(f"user{n}", "honest", f"192.0.2.{n}")) for n in range(12)]
    await asyncio.sleep(0)
    may_go.set()
    for one in await asyncio.gather(*honest):
        assert one.access_token
    done = await asyncio.gather(*attack, return_exceptions=True)
    assert sum(isinstance(one, Denied) for one in done) == 100 - QUEUE + 12
    assert env.refusals.count("queue") == 100 - QUEUE + 12
    assert order[:14].count("attack") == 2  # the one that ran, and one in its turn


async def test_a_login_that_is_cancelled_in_the_queue_hands_its_turn_on(
    env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go = threading.Event()

    def slow(password: str) -> str:
        may_go.wait(60)
        return f"hash of {password}"

    monkeypatch.setattr(module, "_hash", slow)
    first, second, third = [asyncio.ensure_future(env.login(f"user{n}")) for n in range(3)]
    await asyncio.sleep(0)
    second.cancel()
    may_go.set()
    await asyncio.gather(first, third)
    await env.login("and now again")


# ---------------------------------------------------------------- who may register

BEYOND = {"private": False}
PASSWORD = "long enough for anybody"


def env_with(policy: Any, **more: Any) -> Env:
    return Env(Registration(policy, **more))


async def test_a_closed_registration_answers_an_unknown_name_like_a_wrong_password() -> None:
    env = env_with("closed", **BEYOND)
    assert await env.accounts.add("alice", PASSWORD)
    unknown, wrong = await env.denied("nobody", PASSWORD), await env.denied("alice", "another")
    assert (unknown.code, unknown.message) == (wrong.code, wrong.message)
    assert unknown.code is Code.UNAUTHORIZED
    assert "only an operator creates accounts" in unknown.message
    assert list(env.table.rows) == ["alice"]
    assert (await env.login("alice", PASSWORD)).user_id == "1"


async def test_an_unknown_name_costs_as_much_as_a_known_one_if_registration_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = env_with("closed", **BEYOND)
    checked: list[str] = []

    def matches(hashed: str, _: str) -> bool:
        checked.append(hashed)
        return False

    monkeypatch.setattr(module, "_matches", matches)
    await env.denied("nobody", PASSWORD)
    assert checked == [module.UNKNOWN_USER_HASH]
    assert not module._hasher.check_needs_rehash(module.UNKNOWN_USER_HASH)


async def test_a_new_account_beyond_loopback_needs_a_password_that_is_long_and_not_well_known() -> None:
    env = env_with("open", **BEYOND)
    for password, reason in (
        ("x", "at least 10 characters"),
        (well_known("alice-and-bob"), "everybody can guess"),
        ("Alice-And-Bob", "everybody can guess"),
    ):
        denied = await env.denied("alice-and-bob", password)
        assert denied.code is Code.BAD_REQUEST
        assert reason in denied.message
    assert not env.table.rows
    assert await env.login("alice-and-bob", PASSWORD)


async def test_a_well_known_password_opens_no_account_beyond_loopback() -> None:
    laptop, beyond = Env(), env_with("closed", **BEYOND)
    await laptop.login("alice", well_known("alice"))
    beyond.table.rows.update(laptop.table.rows)
    denied = await beyond.denied("alice", well_known("alice"))
    assert (denied.code, beyond.refusals) == (Code.FORBIDDEN, ["guessable"])


async def test_an_invite_code_creates_one_account() -> None:
    env = env_with("invite", **BEYOND)
    without = await env.denied("alice", PASSWORD)
    assert (without.code, "needs an invite code" in without.message) == (Code.UNAUTHORIZED, True)
    code = await env.accounts.invite(60)
    assert code
    assert (await env.login("alice", PASSWORD, invite=code)).user_id == "1"
    assert (await env.denied("bob", PASSWORD, invite=code)).code is Code.FORBIDDEN
    assert (await env.login("alice", PASSWORD, invite=code)).user_id == "1"  # an account needs none
    assert list(env.table.rows) == ["alice"]


async def test_an_invite_code_is_not_spent_if_no_account_is_created() -> None:
    env = env_with("invite", **BEYOND)
    code = str(await env.accounts.invite(60))
    assert (await env.denied("alice", "short", invite=code)).code is Code.BAD_REQUEST
    env.table.is_away = True
    with pytest.raises(ArchiveAway):
        await env.login("alice", PASSWORD, invite=code)
    env.table.is_away = False
    assert await env.login("alice", PASSWORD, invite=code)


async def test_a_bad_invite_code_has_the_same_answer_for_known_and_unknown_names() -> None:
    env = env_with("invite", **BEYOND)
    await env.accounts.add("alice", PASSWORD)
    denied = [await env.denied(name, "not the password", invite="made up") for name in ("alice", "nobody")]
    assert {(one.code, one.message) for one in denied} == {(Code.FORBIDDEN, denied[0].message)}


@pytest.mark.parametrize("policy", ["open", "closed"])
async def test_there_are_no_invite_codes_where_they_are_not_used(policy: str) -> None:
    assert await env_with(policy).accounts.invite(60) is None


async def test_a_name_that_is_guessed_from_many_addresses_is_refused_with_its_own_sentence(
    env: Env,
) -> None:
    env.tries_left, env.refusing = 0, LoginVerdict.NAME
    denied = await env.denied()
    assert denied.code is Code.TOO_MANY_REQUESTS
    assert "from an address you have used before" in denied.message
    assert env.refusals == ["name"]


async def test_only_a_login_that_succeeded_makes_its_address_known(env: Env) -> None:
    await env.login()
    await env.denied(password="other", address="203.0.113.7")
    assert env.succeeded_at == [("::1", "alice")]


# ---------------------------------------------------------------- operators


async def test_an_operator_adds_an_account_unless_the_name_is_taken(env: Env) -> None:
    assert await env.accounts.add("alice", "pw")
    assert await env.accounts.add("alice", "other") is None
    assert await env.login()


async def test_a_new_password_ends_the_sessions_of_the_old_one(env: Env) -> None:
    login = await env.login()
    assert await env.accounts.set_password("alice", "new") == 1
    assert await env.accounts.identify(login.access_token) is Reason.SESSION_INVALID
    assert (await env.denied()).code is Code.UNAUTHORIZED
    assert await env.login(password="new")
    assert await env.accounts.set_password("nobody", "new") is None


async def test_a_removed_user_has_no_tokens_and_no_account(env: Env) -> None:
    login = await env.login()
    assert await env.accounts.remove("alice") == 1
    assert await env.accounts.identify(login.access_token) is Reason.SESSION_INVALID
    with pytest.raises(Denied):
        await env.accounts.refresh(login.refresh_token)
    assert not env.table.rows
    assert await env.accounts.remove("alice") is None


async def test_account_is_not_removed_during_a_redis_outage(env: Env) -> None:
    await env.login()
    env.redis_is_away = True
    with pytest.raises(RedisAway):
        await env.accounts.remove("alice")
    assert list(env.table.rows) == ["alice"]


# ---------------------------------------------------------------- sessions


async def test_a_login_ends_the_sessions_before_it(env: Env) -> None:
    first = await env.login()
    second = await env.login()
    assert await env.accounts.identify(first.access_token) is Reason.SESSION_INVALID
    assert isinstance(await env.accounts.identify(second.access_token), Access)


async def test_a_refresh_token_makes_access_tokens_of_its_session(env: Env) -> None:
    login = await env.login()
    env.now += 59
    fresh = await env.accounts.refresh(login.refresh_token)
    assert (fresh.user_id, fresh.access_token_expires_in_seconds) == ("1", 60)
    env.now += 59
    assert await env.accounts.identify(login.access_token) is Reason.TOKEN_EXPIRED
    assert await env.accounts.identify(fresh.access_token) == Access(1, 1, env.now + 1)


async def test_a_refresh_token_of_an_older_session_is_denied(env: Env) -> None:
    first = await env.login()
    await env.login()
    with pytest.raises(Denied, match="session is over") as denied:
        await env.accounts.refresh(first.refresh_token)
    assert denied.value.code is Code.UNAUTHORIZED


@pytest.mark.parametrize(
    ("token", "code"), [(None, Code.BAD_REQUEST), ("", Code.BAD_REQUEST), ("x", Code.UNAUTHORIZED)]
)
async def test_refresh_denies_tokens_of_other_kinds(env: Env, token: str | None, code: Code) -> None:
    with pytest.raises(Denied, match="refreshToken") as denied:
        await env.accounts.refresh(token)
    assert denied.value.code is code


async def test_access_and_refresh_tokens_do_not_stand_for_each_other(env: Env) -> None:
    login = await env.login()
    with pytest.raises(Denied, match="no refresh token"):
        await env.accounts.refresh(login.access_token)
    assert await env.accounts.identify(login.refresh_token) is Reason.INVALID_TOKEN


async def test_a_refresh_token_expires(env: Env) -> None:
    login = await env.login()
    env.now += 600
    with pytest.raises(Denied, match="has expired"):
        await env.accounts.refresh(login.refresh_token)


async def test_verify_says_whose_token_it_is_or_why_nobodys(env: Env) -> None:
    first = await env.login()
    verdict = await env.accounts.verify(first.access_token)
    assert (verdict.ok, verdict.user_id, verdict.reason) == (True, "1", None)
    await env.login()
    for token, reason in ((None, "missing_token"), ("x", "invalid_token"), (first.access_token, "session_invalid")):
        verdict = await env.accounts.verify(token)
        assert (verdict.ok, verdict.user_id, verdict.reason) == (False, None, reason)
    env.now += 60
    assert (await env.accounts.verify(first.access_token)).reason == "token_expired"


async def test_a_token_of_a_user_that_never_logged_in_is_good(env: Env) -> None:
    assert isinstance(await env.accounts.identify(env.tokens.access(77, 0, env.now)), Access)


async def test_tokens_stay_valid_when_redis_lost_the_versions(env: Env) -> None:
    login = await env.login()
    env.versions.clear()
    assert isinstance(await env.accounts.identify(login.access_token), Access)


async def test_tokens_are_valid_and_logins_fail_during_a_redis_outage(env: Env) -> None:
    login = await env.login()
    env.redis_is_away = True
    assert isinstance(await env.accounts.identify(login.access_token), Access)
    assert (await env.accounts.refresh(login.refresh_token)).user_id == "1"
    with pytest.raises(RedisAway):
        await env.login()


async def test_no_password_and_no_token_is_logged_or_in_an_exception(env: Env) -> None:
    with capture_logs() as logs:
        login = await env.login(password="very-secret-word")
        denied = await env.denied(password="other-secret-word")
        await env.accounts.verify(login.access_token)
    told = repr(logs) + repr(denied)
    assert "secret-word" not in told
    assert login.access_token not in told
