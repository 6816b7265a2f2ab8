"""Tokens of users, and the ways of a message into the archive."""

import asyncio
import base64
import json
from collections.abc import Callable, Sequence
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from dragoman.archive import BadRow, NewMessage, SaveOutcome, SaveVerdict, Status, Stored
from dragoman.domain.chat.switches import Switches
from dragoman.protocol.chat import MAX_ID
from dragoman.protocol.peer import ChatNotices, ChatPush, InboxMessage, decode_inbox
from dragoman.services.chat import inbound, save_stage
from dragoman.services.chat.acceptance import PushedMessages
from dragoman.services.chat.credentials import Access, BadToken, Tokens
from dragoman.services.chat.delivery import Delivery
from dragoman.services.chat.inbound import ChatSocket, Inbound, frame_of
from dragoman.services.chat.local_users import LocalUsers
from dragoman.services.chat.one_phase import Refusals
from dragoman.services.chat.save_stage import SaveStage, ShardLease
from dragoman.services.loops import Tasks
from dragoman.services.metrics import Metrics
from dragoman.store.chat.entries import ChatEntry, SavedEntry
from dragoman.store.errors import RedisAway
from dragoman.store.inbox import PushReply
from support.tables import for_each

NOW = 1_700_000_000.5
SECRET = "a-secret-of-more-than-thirty-two-bytes"
OLD = "an-old-secret-of-more-than-thirty-two-bytes"
TOKENS = Tokens((SECRET, OLD), "mini-im", access_ttl_s=60, refresh_ttl_s=600)


def made(secret: str = SECRET, algorithm: str = "HS256", **claims: Any) -> str:
    """A token somebody else made, whatever it says; a claim that is None is left out."""
    all_claims = {"iss": "mini-im", "iat": int(NOW), "exp": int(NOW) + 60, "uid": 42, "typ": "access", "sv": 3} | claims
    payload = {name: value for name, value in all_claims.items() if value is not None}
    return jwt.api_jws.encode(json.dumps(payload).encode(), secret, algorithm=algorithm)


def refused(token: str, now: float = NOW) -> BadToken:
    with pytest.raises(BadToken) as error:
        TOKENS.read_access(token, now)
    return error.value


def unsigned(token: str) -> str:
    head = base64.urlsafe_b64encode(b'{"alg":"none","typ":"JWT"}').rstrip(b"=").decode()
    return f"{head}.{token.split('.')[1]}."


def test_a_token_is_read_as_it_was_made() -> None:
    assert TOKENS.read_access(TOKENS.access(42, 3, NOW), NOW) == Access(42, 3, 1_700_000_061)
    assert TOKENS.read_refresh(TOKENS.refresh(42, 3, NOW), NOW) == Access(42, 3, 1_700_000_601)


def test_the_claims_are_those_that_others_know() -> None:
    claims = jwt.decode(TOKENS.access(42, 3, NOW), options={"verify_signature": False})
    assert len(claims.pop("jti")) == 16
    assert claims == {
        "iss": "mini-im",
        "iat": 1_700_000_000,
        "exp": 1_700_000_061,
        "uid": 42,
        "typ": "access",
        "sv": 3,
    }


def test_a_token_is_good_until_it_expires_and_not_a_moment_longer() -> None:
    token = made()
    assert TOKENS.read_access(token, int(NOW) + 59.999).uid == 42
    assert refused(token, int(NOW) + 60).expired


def test_a_token_without_a_session_version_is_of_version_0() -> None:
    assert TOKENS.read_access(made(sv=None), NOW).sv == 0


def test_tokens_of_the_previous_secret_are_accepted_and_never_made() -> None:
    assert TOKENS.read_access(made(OLD), NOW).uid == 42
    with pytest.raises(BadToken):
        Tokens((OLD,), "mini-im", 60, 600).read_access(TOKENS.access(42, 3, NOW), NOW)


def test_changed_secrets_apply_to_the_next_token() -> None:
    tokens = Tokens((OLD,), "mini-im", 60, 600)
    before = tokens.access(42, 3, NOW)
    assert tokens.signing_keys.change((SECRET, OLD))
    after = tokens.access(42, 3, NOW)
    assert TOKENS.read_access(after, NOW) == tokens.read_access(after, NOW) == tokens.read_access(before, NOW)
    assert tokens.signing_keys.change((SECRET,))
    with pytest.raises(BadToken):
        tokens.read_access(before, NOW)


def test_an_expired_token_of_the_previous_secret_is_expired() -> None:
    assert refused(made(OLD, exp=1)).expired


def test_claims_that_are_not_ours_mean_nothing() -> None:
    more = made(sub=42, aud="app", jti=7, nbf="soon", iat="soon", role=["admin"])
    assert TOKENS.read_access(more, NOW).uid == 42


@pytest.mark.parametrize("claim", ["iat", "nbf"])
def test_a_token_from_the_future_is_not_valid_yet_unless_a_clock_is_only_a_little_ahead(claim: str) -> None:
    tomorrow: dict[str, Any] = {claim: int(NOW) + 86_400}
    soon: dict[str, Any] = {claim: int(NOW) + 30}
    assert str(refused(made(**tomorrow))) == "the token is not valid yet"
    assert TOKENS.read_access(made(**soon), NOW).uid == 42


@for_each(
    [
        {"uid": "42"},
        {"uid": 42.0},
        {"uid": True},
        {"uid": None},
        {"uid": 0},
        {"uid": -1},
        {"uid": MAX_ID + 1},
        {"sv": "3"},
        {"sv": -1},
        {"sv": True},
        {"exp": None},
        {"exp": "tomorrow"},
        {"typ": "refresh"},
        {"typ": None},
        {"typ": ["access"]},
        {"iss": "somebody-else"},
        {"iss": None},
    ]
)
def test_a_token_with_a_claim_that_is_wrong_is_bad(claims: dict[str, Any]) -> None:
    assert not refused(made(**claims)).expired


def test_a_token_that_is_not_signed_is_bad() -> None:
    refused(unsigned(made()))
    refused(made().rpartition(".")[0] + ".")


def test_a_token_signed_with_another_secret_or_another_algorithm_is_bad() -> None:
    refused(made("another-secret-of-more-than-thirty-two-bytes"))
    refused(made(algorithm="HS512", secret=SECRET * 2))
    refused(jwt.api_jws.encode(b"{}", SECRET, algorithm="HS256"))


@given(st.text())
def test_any_text_is_bad(text: str) -> None:
    refused(text)


@given(st.integers(0), st.characters())
def test_a_token_with_any_letter_changed_is_bad_or_the_same(at: int, letter: str) -> None:
    token = TOKENS.access(42, 3, NOW)
    at %= len(token)
    changed = token[:at] + letter + token[at + 1 :]
    try:
        # The last letter of a signature has bits that mean nothing.
        assert TOKENS.read_access(changed, NOW).uid == 42
    except BadToken:
        assert changed != token


def test_a_refusal_does_not_quote_the_token() -> None:
    assert "eyJ" not in str(refused(made(exp=1)))


def test_without_a_secret_there_are_no_tokens() -> None:
    with pytest.raises(ValueError, match="need a secret"):
        Tokens(("", ""), "mini-im", 60, 600)


SENDER, RECEIVER = 7, 9


class Socket:
    closed = False
    buffered = 0

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self.send = send


class Rows:
    """An archive that answers when it is let."""

    def __init__(self) -> None:
        self.rows: list[Stored] = []
        self.looks = 0
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()
        self.go_on.set()

    def save(self, id: int) -> Stored:
        row = Stored(id, 1, id, SENDER, RECEIVER, "TEXT", "hi", f"c{id}", Status.SAVED, 5, 6)
        self.rows.append(row)
        return row

    async def undelivered(self, user: int, after: int, most: int) -> list[Stored]:
        self.looks += 1
        found = [row for row in self.rows if row.id > after][:most]
        self.asked.set()
        await self.go_on.wait()
        return found


class InboundEnv:
    def __init__(self) -> None:
        self.rows, self.heard = Rows(), list[int]()
        self.inbound = Inbound(RECEIVER, cast(ChatSocket, Socket(self._hear)), self.rows)

    def _hear(self, frame: bytes) -> None:
        said: dict[str, Any] = json.loads(frame)
        self.heard.append(int(said["serverMsgId"]))

    def save_and_push(self, id: int) -> None:
        row = self.rows.save(id)
        self.inbound.push(row.id, row.from_user, frame_of(row))


async def test_pushes_during_a_pause_wait_although_an_earlier_resend_ends() -> None:
    env = InboundEnv()
    env.rows.go_on.clear()
    first = asyncio.ensure_future(env.inbound.resume())
    await env.rows.asked.wait()
    env.inbound.pause()
    env.rows.go_on.set()
    await first
    env.rows.save(1)  # and nobody knows where to push it
    env.save_and_push(2)
    assert env.heard == []
    await env.inbound.resume()
    assert env.heard == [1, 2]
    assert not env.inbound._state.resending


async def test_pushes_wait_until_each_pause_has_ended() -> None:
    env = InboundEnv()
    env.inbound.pause()
    env.save_and_push(2)
    env.rows.rows.clear()  # delivered before it was saved
    await env.inbound.resume()
    assert env.heard == []
    env.rows.save(1)
    await env.inbound.resume()
    assert env.heard == [1, 2]


async def test_resend_that_is_requested_during_another_sends_what_was_missed_after_it() -> None:
    env = InboundEnv()
    for id in range(1, inbound.PAGE + 1):
        env.rows.save(id)
    await env.inbound.resume()
    env.heard.clear()
    env.rows.asked.clear()
    env.rows.go_on.clear()
    again = asyncio.ensure_future(env.inbound.resend(again=True, pages=1))
    await env.rows.asked.wait()
    missed, pushed = inbound.PAGE + 1, inbound.PAGE + 2
    env.rows.save(missed)
    env.inbound.pause()
    env.save_and_push(pushed)
    looking = asyncio.ensure_future(env.inbound.resume())
    env.rows.go_on.set()
    await asyncio.gather(again, looking)
    assert env.heard == [*range(1, inbound.PAGE + 1), missed, pushed]


def test_repeated_ids_with_another_body_are_all_counted_and_logged_once_a_minute_for_each_sender() -> None:
    metrics, times = Metrics(), iter([0.0, 1.0, 59.0, 61.0, 61.0])
    refusals = Refusals(metrics, lambda: next(times))
    with capture_logs() as logs:
        for sender in (7, 7, 7, 7, 8):
            refusals.note_other_body(sender, "n", 5)
    assert metrics.chat_other_body.value == 5
    assert [(line["log_level"], line["user"]) for line in logs] == [("warning", 7), ("warning", 7), ("warning", 8)]


class World:
    """Of Redis and SQL what a save stage uses; all users are at another instance."""

    def __init__(self) -> None:
        self.away = 0  # so many times, when asked where somebody is
        self.handed: list[InboxMessage] = []
        self.metrics = metrics = Metrics()
        this, self.bad = cast(Any, self), set[int]()
        self.delivery = Delivery("i0", LocalUsers(metrics, Tasks(), 60), this, this, metrics, Tasks())
        switches = cast(Any, SimpleNamespace(current=Switches(enabled=True)))
        pushed = PushedMessages("i0", cast(Any, SimpleNamespace(subscribe=lambda listener: None)))
        self.stage = SaveStage(this, this, self.delivery, this, switches, metrics, Refusals(metrics), 5, pushed)

    async def owners(self, users: Sequence[int]) -> list[str]:
        if self.away:
            self.away -= 1
            raise RedisAway("away")
        return [f"i1|{user}" for user in users]

    async def put(self, instance: str, kind: str, data: bytes) -> tuple[PushReply, str]:
        self.handed.append(decode_inbox(data))
        return PushReply.OK, "1-1"

    async def get(self, instance: str, id: str) -> None:
        return None

    async def save(self, rows: Sequence[NewMessage], *, shard: int, fence: int) -> list[SaveOutcome]:
        if any(row.id in self.bad for row in rows):
            raise BadRow("one of them cannot be written")
        return [SaveOutcome(SaveVerdict.SAVED, _stored(row)) for row in rows]

    async def move_to_dead(self, *args: object, **more: object) -> int:
        return 0

    async def keep_notice(self, user: int, frame: bytes) -> None:
        pass

    async def finish_saved(self, shard: int, holder: str, stream: str, rows: Sequence[SavedEntry]) -> list[SavedEntry]:
        return []

    async def work(self, *ids: int) -> None:
        entries = [
            ChatEntry("1-1", id, f"m{id}", SENDER, RECEIVER, "TEXT", "hi", 1, 1, "i0", "save_first") for id in ids
        ]
        await self.stage.handle(ShardLease(0, "i0", 1, inf, "accepted"), list(entries))


def _stored(row: NewMessage) -> Stored:
    return Stored(row.id, 1, 1, row.from_user, row.to_user, "TEXT", row.body, row.client_msg_id, Status.SAVED, 5, 6)


async def test_sender_gets_saved_although_redis_was_unavailable_for_a_moment() -> None:
    world = World()
    world.away = 1
    await world.work(1)
    sent = [message for message in world.handed if isinstance(message, ChatNotices)]
    assert [(one.user, one.ended) for message in sent for one in message.notices] == [(SENDER, 1)]


async def test_sender_gets_saved_when_redis_is_back() -> None:
    world = World()
    world.away = 4
    await world.work(1)
    while world.away:
        await world.delivery.run_once()
    await world.delivery.run_once()
    assert [type(message) for message in world.handed].count(ChatNotices) == 1


async def test_senders_and_receivers_are_looked_up_in_one_query() -> None:
    world = World()
    asked = list[Sequence[int]]()

    async def owners(users: Sequence[int]) -> list[str]:
        asked.append(users)
        return ["i1|1"] * len(users)

    world.delivery.users.owners = owners  # type: ignore[method-assign]
    await world.work(1, 2)
    assert asked == [[RECEIVER, SENDER]]
    assert [type(message) for message in world.handed] == [ChatPush, ChatNotices], (
        "the next message of the sender must not overtake this one"
    )


async def test_sender_that_redis_could_not_locate_needs_no_resend() -> None:
    world = World()
    world.away = 1
    await world.work(1)
    assert not world.delivery.is_unlocated(SENDER)


async def test_each_row_that_the_database_refuses_counts_as_a_failed_save(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(save_stage, "BACK_OFF_S", (0.0,) * 6)
    world = World()
    world.bad = {2, 3}
    await world.work(1, 2, 3, 4)
    assert (world.metrics.chat_save_fail.value, world.metrics.chat_dead.value) == (2, 2)
    assert sum(world.metrics.chat_save_lag.buckets) == 2
