"""Accounts and history over HTTP, against a real server and a real database."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import time
from typing import Any, cast
from unittest.mock import Mock

import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer
from structlog.testing import capture_logs

from dragoman.archive import Archive, ArchiveAway, NewMessage, Receipt, Status, open_archive
from dragoman.gateway import http_requests
from dragoman.gateway.authentication import Authenticator
from dragoman.gateway.chat_user_api import routes
from dragoman.gateway.http_application import application
from dragoman.gateway.operator_api import Auditor, HttpContext
from dragoman.services.chat.accounts import Accounts
from dragoman.services.chat.credentials import Tokens
from dragoman.services.metrics import Value
from dragoman.store.errors import RedisAway
from support.waiting import Enter

SECRET = "a-secret-of-more-than-thirty-two-bytes"
ALICE, BOB, CAROL = 9_007_199_254_740_993, 102, 103  # the first is beyond what a JavaScript number can hold
FIRST_ID = 7 << 50
PAGES = ["/single-chat/message/cursor", "/single-chat/conversation/cursor", "/single-chat/member/state"]
POSTS = ["/auth/login", "/auth/refresh", "/auth/verify"]
MESSAGE_FIELDS = (
    "id chatType singleChatId fromUserId toUserId msgType status msgSeq clientMsgId serverMsgId createdAt updatedAt "
    "content"
)


class Site:
    """The HTTP of an instance whose operators need a token; session versions are a dict instead of Redis."""

    def __init__(self, archive: Archive, client: TestClient[Any, Any], tokens: Tokens) -> None:
        self.archive, self.client, self.tokens = archive, client, tokens
        self.versions: Counter[int] = Counter()
        self.redis_is_away = False
        self.refused = Value()

    async def session_version(self, uid: int) -> int:
        if self.redis_is_away:
            raise RedisAway("not connected")
        return self.versions[uid]

    async def raise_session_version(self, uid: int) -> int:
        self.versions[uid] += 1
        return await self.session_version(uid)

    def token(self, uid: int, sv: int = 0) -> str:
        return self.tokens.access(uid, sv, time())

    async def post(self, path: str, body: Any, status: int = 200) -> dict[str, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await opened(await self.client.post(path, data=data), status)

    async def get(self, path: str, me: int = ALICE, /, **query: Any) -> Any:
        return (await opened(await self._asked(path, me, query), 200))["data"]

    async def refusal(self, path: str, **query: Any) -> str:
        told = await opened(await self._asked(path, ALICE, query), 400)
        assert told["code"] == 40000
        return str(told["message"])

    async def _asked(self, path: str, me: int, query: dict[str, Any]) -> ClientResponse:
        asked = {name: str(value) for name, value in query.items()}
        return await self.client.get(path, params=asked, headers={"Authorization": f"Bearer {self.token(me)}"})

    async def save(self, *pairs: tuple[int, int]) -> list[int]:
        """A message for each pair of sender and receiver; their ids."""
        first = FIRST_ID + len(await self.archive.history(ALICE, BOB, limit=100)) * 1000
        rows = [
            NewMessage(first + n, f"c-{first}-{n}", from_, to, "TEXT", f"message {n} 😀", 1_700_000_000_000 + n)
            for n, (from_, to) in enumerate(pairs)
        ]
        await self.archive.save(rows)
        return [row.id for row in rows]


async def opened(response: ClientResponse, status: int) -> dict[str, Any]:
    """The envelope of an answer, which is there whatever happened."""
    text = await response.text()
    told: dict[str, Any] = json.loads(text)
    assert response.status == status, text
    assert response.content_type == "application/json"
    assert list(told) == ["ok", "code", "message", "data", "ts"]
    assert told["ok"] == (told["code"] == 0) == (status == 200)
    assert isinstance(told["ts"], int)
    assert told["message"]
    assert text == json.dumps(told, separators=(",", ":"), ensure_ascii=False)
    return told


@asynccontextmanager
async def site(directory: Path, history_per_minute: int = 0) -> AsyncIterator[Site]:
    archive = open_archive(f"sqlite:///{directory / 'chat.sqlite3'}")
    await archive.open()
    tokens = Tokens((SECRET,), "mini-im", 60.0, 600.0)
    made = Site(archive, cast(Any, None), tokens)
    accounts = Accounts(
        archive,
        tokens,
        session_version=made.session_version,
        raise_session_version=made.raise_session_version,
        end_all_sessions=made.raise_session_version,
    )
    # HttpContext is for operators: nothing here gets that far.
    context = Mock(HttpContext, auditor=Auditor(Mock(), "here"))
    app = application(
        context, Authenticator((SECRET,), "dragoman"), routes(accounts, archive, history_per_minute, made.refused.inc)
    )
    async with TestClient(TestServer(app)) as client:
        made.client = client
        yield made
    await archive.close()


@pytest.fixture
def here(enter: Enter, tmp_path: Path) -> Site:
    return enter(site(tmp_path))


@pytest.mark.parametrize("path", PAGES)
async def test_a_user_asks_for_history_so_often_a_minute_and_others_do_not_notice(tmp_path: Path, path: str) -> None:
    async with site(tmp_path, history_per_minute=3) as here:
        await here.save((ALICE, BOB))
        for _ in range(3):
            await here.get(path, ALICE, peerUserId=BOB)
        refused = await opened(await here._asked(path, ALICE, {"peerUserId": BOB}), 429)
        assert refused["message"] == "too many requests for history: try again in a minute"
        assert here.refused.value == 1
        await here.get(path, BOB, peerUserId=ALICE)


# ---------------------------------------------------------------- accounts


async def test_login_refresh_verify(here: Site) -> None:
    login = (await here.post("/auth/login", {"username": "alice", "password": "pw"}))["data"]
    assert list(login) == [
        "userId",
        "accessToken",
        "refreshToken",
        "accessTokenExpiresInSeconds",
        "refreshTokenExpiresInSeconds",
    ]
    assert (login["accessTokenExpiresInSeconds"], login["refreshTokenExpiresInSeconds"]) == (60, 600)
    again = (await here.post("/auth/refresh", {"refreshToken": login["refreshToken"]}))["data"]
    assert list(again) == ["userId", "accessToken", "accessTokenExpiresInSeconds"]
    verdict = (await here.post("/auth/verify", {"accessToken": again["accessToken"]}))["data"]
    assert verdict == {"ok": True, "userId": login["userId"]}
    assert login["userId"] == again["userId"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body is not JSON"),
        (b"username=alice&password=pw", "the body is not JSON"),
        (b'{"username":"\xff"}', "the body is not JSON"),
        (b'{"username":"\\ud800"}', "the body is not JSON"),
        (b'{"x":' + b"[" * 10_000, "the body is not JSON"),
        (b"[]", "the body is not a JSON object: Expected `object`, got `array`"),
        (b"{}", "username is missing"),
        (b'{"username":7}', "username: Expected `str | null`, got `int`"),
        (b'{"username":"alice"}', "password is missing"),
        (b'{"username":"alice","password":null}', "password is missing"),
        (b'{"username":"a\\u0000","password":"x"}', "username holds characters that cannot be shown"),
        (b'{"x":"' + b"x" * 20_000 + b'"}', "the body is longer than 16384 bytes"),
    ],
)
async def test_a_login_that_cannot_be_read_is_a_bad_request_that_says_why(
    here: Site, body: bytes, message: str
) -> None:
    told = await here.post("/auth/login", body, 400)
    assert (told["code"], told["message"]) == (40000, message)


async def test_body_that_does_not_arrive_is_refused(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_requests, "BODY_TIMEOUT_S", 0.05)
    never = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await never.wait()

    told = await opened(await here.client.post("/auth/login", data=slow()), 400)
    assert told["message"] == "the body did not come in time"


async def test_login_fails_and_tokens_stay_valid_during_a_redis_outage(here: Site) -> None:
    here.redis_is_away = True
    told = await here.post("/auth/login", {"username": "alice", "password": "pw"}, 503)
    assert (told["code"], told["message"]) == (50000, "Redis is away: try again in a moment")
    assert await here.get("/single-chat/conversation/cursor") == []


# ---------------------------------------------------------------- who may look


@pytest.mark.parametrize("path", PAGES)
async def test_history_needs_an_access_token(here: Site, path: str) -> None:
    good, refresh = here.token(BOB), here.tokens.refresh(BOB, 0, time())
    expired = here.tokens.access(BOB, 0, 1.0)
    here.versions[CAROL] = 1
    over = here.token(CAROL)
    for query, headers, reason in (
        ("", {}, "missing_token"),
        ("", {"Authorization": "Bearer nonsense"}, "invalid_token"),
        ("", {"Authorization": f"Basic {good}"}, "missing_token"),
        ("", {"Authorization": f"Bearer {refresh}"}, "invalid_token"),
        ("", {"Authorization": f"Bearer {expired}"}, "token_expired"),
        ("", {"Authorization": f"Bearer {over}"}, "session_invalid"),
        ("?token=nonsense", {}, "invalid_token"),
    ):
        told = await opened(await here.client.get(path + query, headers=headers), 401)
        assert (told["code"], told["message"]) == (40100, f"unauthorized: {reason}")


@pytest.mark.parametrize("query", ["token", "accessToken"])
async def test_an_access_token_may_stand_in_the_query(here: Site, query: str) -> None:
    path = "/single-chat/conversation/cursor"
    told = await opened(await here.client.get(path, params={query: here.token(BOB)}), 200)
    assert told["data"] == []


async def test_the_rest_of_the_port_stays_for_operators(here: Site) -> None:
    operators, nobody = ("/metrics", "/api/v1/cluster"), ("/auth", "/auth/login/x", "/single-chat")
    for path, status in [*((path, 401) for path in operators), *((path, 404) for path in nobody)]:
        response = await here.client.get(path, headers={"Authorization": f"Bearer {here.token(BOB)}"})
        assert response.status == status, path
        assert "error" in await response.json()


async def test_pages_of_other_hosts_cannot_log_in(here: Site) -> None:
    body, headers = b'{"username":"alice","password":"pw"}', {"Origin": "https://evil.example"}
    assert (await here.client.post("/auth/login", data=body, headers=headers)).status == 403


@pytest.mark.parametrize(("method", "allowed", "paths"), [("POST", "GET", PAGES), ("GET", "POST", POSTS)])
async def test_another_method_is_refused_in_the_envelope(
    here: Site, method: str, allowed: str, paths: list[str]
) -> None:
    for path in paths:
        response = await here.client.request(method, path)
        assert response.headers["Allow"] == allowed
        assert (await opened(response, 405))["code"] == 40000


# ---------------------------------------------------------------- history


async def test_a_message_has_all_its_fields(here: Site) -> None:
    (id,) = await here.save((ALICE, BOB))
    (message,) = await here.get("/single-chat/message/cursor", peerUserId=BOB)
    assert list(message) == MESSAGE_FIELDS.split()
    (stored,) = (await here.archive.messages([id])).values()
    assert message == {
        "id": str(id),
        "chatType": "SINGLE",
        "singleChatId": str(stored.conversation),
        "fromUserId": str(ALICE),
        "toUserId": str(BOB),
        "msgType": "TEXT",
        "status": "SAVED",
        "msgSeq": 1,
        "clientMsgId": stored.client_msg_id,
        "serverMsgId": str(id),
        "createdAt": 1_700_000_000_000,
        "updatedAt": stored.saved_ms,
        "content": "message 0 😀",
    }


async def test_the_status_of_a_message_rises(here: Site) -> None:
    one, two, _ = await here.save(*[(ALICE, BOB)] * 3)
    await here.archive.receipts([Receipt(BOB, Status.DELIVERED, (one, two)), Receipt(BOB, Status.READ, (one,))])
    found = await here.get("/single-chat/message/cursor", peerUserId=BOB)
    assert [message["status"] for message in found] == ["SAVED", "DELIVERED", "READ"]


async def test_messages_come_newest_first_and_strictly_below_the_cursor(here: Site) -> None:
    ids = await here.save(*[(ALICE, BOB), (BOB, ALICE)] * 15, (ALICE, CAROL))

    async def page(**query: Any) -> list[int]:
        found = await here.get("/single-chat/message/cursor", peerUserId=BOB, **query)
        return [message["msgSeq"] for message in found]

    assert await page() == list(range(30, 10, -1))
    assert await page(limit=100) == list(range(30, 0, -1))
    assert await page(limit=3) == [30, 29, 28]
    assert await page(limit=3, lastSeq=28) == [27, 26, 25]
    assert await page(limit=3, lastId=ids[27]) == [27, 26, 25]
    assert await page(limit=3, lastSeq=28, lastId=ids[1]) == [27, 26, 25]
    assert await page(limit=3, lastSeq="", lastId="") == [30, 29, 28]
    assert await page(lastSeq=1) == []
    assert await page(lastSeq=0) == []


async def test_user_cannot_read_messages_of_other_users(here: Site) -> None:
    await here.save((ALICE, BOB))
    assert len(await here.get("/single-chat/message/cursor", BOB, peerUserId=ALICE)) == 1
    assert await here.get("/single-chat/message/cursor", CAROL, peerUserId=ALICE) == []
    assert await here.get("/single-chat/conversation/cursor", CAROL) == []


async def test_conversations_have_all_their_fields(here: Site) -> None:
    ids = await here.save((ALICE, BOB), (BOB, ALICE), (BOB, ALICE))
    await here.archive.receipts([Receipt(ALICE, Status.READ, (ids[1],))])
    (found,) = await here.get("/single-chat/conversation/cursor")
    last = found.pop("lastMessage")
    assert list(last) == MESSAGE_FIELDS.split()
    assert (last["id"], last["msgSeq"], last["content"]) == (str(ids[2]), 3, "message 2 😀")
    assert list(found) == [
        "singleChatId",
        "peerUserId",
        "updatedAt",
        "unreadCount",
        "myLastReadMsgSeq",
        "peerLastReadMsgSeq",
    ]
    assert (found["peerUserId"], found["unreadCount"]) == (str(BOB), 1)
    assert (found["myLastReadMsgSeq"], found["peerLastReadMsgSeq"]) == (2, 0)


async def test_conversations_are_paged_by_their_last_change(here: Site) -> None:
    await here.save(*[(ALICE, peer) for peer in range(1, 31)])
    seen: list[str] = []
    query: dict[str, Any] = {}
    while page := await here.get("/single-chat/conversation/cursor", limit=7, **query):
        seen += [found["peerUserId"] for found in page]
        query = {"lastUpdatedAt": page[-1]["updatedAt"], "lastId": page[-1]["singleChatId"]}
    assert sorted(map(int, seen)) == list(range(1, 31))


async def test_the_state_of_a_conversation(here: Site) -> None:
    (id, _) = await here.save((ALICE, BOB), (BOB, ALICE))
    await here.archive.receipts([Receipt(BOB, Status.READ, (id,))])
    state = await here.get("/single-chat/member/state", peerUserId=BOB)
    (conversation,) = await here.get("/single-chat/conversation/cursor")
    assert state == {
        "singleChatId": conversation["singleChatId"],
        "peerUserId": str(BOB),
        "myLastReadMsgSeq": conversation["myLastReadMsgSeq"],
        "peerLastReadMsgSeq": conversation["peerLastReadMsgSeq"],
    }
    assert state["peerLastReadMsgSeq"] >= 1


async def test_state_of_an_unknown_conversation_is_not_found(here: Site) -> None:
    headers = {"Authorization": f"Bearer {here.token(ALICE)}"}
    response = await here.client.get("/single-chat/member/state?peerUserId=5", headers=headers)
    told = await opened(response, 404)
    assert (told["code"], told["message"]) == (40400, "there is no conversation with this user yet")


@pytest.mark.parametrize("value", ["0", "-1", "101", "1.5", "x", " 1", "١", "9" * 400, "1" * 20])
@pytest.mark.parametrize("path", PAGES[:2])
async def test_a_limit_is_a_number_from_1_to_100(here: Site, path: str, value: str) -> None:
    assert await here.refusal(path, peerUserId=BOB, limit=value) == "limit is not a number from 1 to 100"


async def test_bad_parameters_are_named(here: Site) -> None:
    messages, conversations, state = PAGES
    for path in (messages, state):
        assert await here.refusal(path) == "peerUserId is missing"
        for value in ("0", "bob", "-1", 2**63):
            assert (await here.refusal(path, peerUserId=value)).startswith("peerUserId is not a number from 1 to")
    for name in ("lastSeq", "lastId"):
        assert (await here.refusal(messages, peerUserId=BOB, **{name: "x"})).startswith(f"{name} is not a number")
    assert "lastId is missing" in await here.refusal(conversations, lastUpdatedAt=5)
    assert "lastUpdatedAt is missing" in await here.refusal(conversations, lastId=5)
    assert "lastUpdatedAt is not a number" in await here.refusal(conversations, lastUpdatedAt="now", lastId=5)


# ---------------------------------------------------------------- what goes wrong


async def test_without_the_database_the_answer_says_so(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: object, **__: object) -> None:
        raise ArchiveAway("not reachable")

    for name in ("history", "conversations", "member_state", "user_by_name"):
        monkeypatch.setattr(here.archive, name, away)
    headers = {"Authorization": f"Bearer {here.token(ALICE)}"}
    answers = [await here.client.get(f"{path}?peerUserId=5", headers=headers) for path in PAGES]
    answers.append(await here.client.post("/auth/login", data=b'{"username":"alice","password":"pw"}'))
    for response in answers:
        told = await opened(response, 503)
        assert (told["code"], told["message"]) == (50000, "the database is away: try again in a moment")


async def test_unexpected_error_is_logged_and_answered_without_details(
    here: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("of the tables")

    monkeypatch.setattr(here.archive, "user_by_name", broken)
    with capture_logs() as logs:
        told = await here.post("/auth/login", {"username": "alice", "password": "very-secret-word"}, 500)
    assert (told["code"], told["message"]) == (50000, "internal error")
    assert [line["event"] for line in logs] == ["a chat request failed"]
    assert "very-secret-word" not in repr(logs)
