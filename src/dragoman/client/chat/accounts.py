"""Accounts over HTTP: log in, refresh the token, read earlier messages.

    account = await login("http://127.0.0.1:5010", "alice", "secret")
    async with Chat("ws://127.0.0.1:5010/ws", token=account.token) as chat: …

`account.token` returns the access token, and refreshes it shortly before it expires.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from dragoman.client.chat.messages import AccessDenied, ChatError, Unreachable

TIMEOUT_S = 10.0
REFRESH_BEFORE_S = 60.0
UNAUTHORIZED, TOO_MANY = 40100, 42900
_DENIED = {UNAUTHORIZED: "unauthorized", 40300: "forbidden", TOO_MANY: "too_many_requests"}


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message of a conversation, as the database has it."""

    from_user: int
    to_user: int
    body: str
    client_msg_id: str
    server_msg_id: int
    seq: int
    status: str
    created_at: Any
    lang: str = ""
    translation: str | None = None


class Account:
    """A user who is logged in. `login` creates it."""

    def __init__(
        self, base_url: str, user_id: int, access_token: str, refresh_token: str = "", lasts_s: float = float("inf")
    ) -> None:
        self.base_url = base_url
        self.user_id = user_id
        self._access, self._refresh = access_token, refresh_token
        self._valid_until = time.monotonic() + lasts_s
        self._lasts_s = lasts_s
        self._refreshing = asyncio.Lock()

    async def token(self) -> str:
        """A valid access token, refreshed if it expires soon. Raises AccessDenied, Unreachable."""
        async with self._refreshing:
            left_s = self._valid_until - time.monotonic()
            if self._refresh and left_s < min(REFRESH_BEFORE_S, self._lasts_s / 2):
                data = await ask("POST", self.base_url, "/auth/refresh", json={"refreshToken": self._refresh})
                self._access = str(data["accessToken"])
                self._valid_until = time.monotonic() + float(data["accessTokenExpiresInSeconds"])
            return self._access

    async def history(
        self, peer: int, limit: int = 20, *, below_seq: int | None = None, lang: str = ""
    ) -> list[StoredMessage]:
        """The messages exchanged with `peer`, newest first; with their translations into `lang`, if there are any."""
        query: dict[str, Any] = {"peerUserId": str(peer), "limit": str(limit)}
        if below_seq is not None:
            query["lastSeq"] = str(below_seq)
        if lang:
            query["lang"] = lang
        rows = await self._get("/single-chat/message/cursor", query)
        if isinstance(rows, Mapping):
            rows = rows.get("messages", [])
        return [_stored(row) for row in rows]

    async def conversations(self, limit: int = 20) -> list[dict[str, Any]]:
        """The conversations of this user, the latest first, as the server reports them."""
        rows = await self._get("/single-chat/conversation/cursor", {"limit": str(limit)})
        return list(rows.get("conversations", []) if isinstance(rows, Mapping) else rows)

    async def _get(self, path: str, query: Mapping[str, str]) -> Any:
        headers = {"Authorization": f"Bearer {await self.token()}"}
        return await ask("GET", self.base_url, path, params=query, headers=headers)


async def login(base_url: str, username: str, password: str, *, invite: str = "") -> Account:
    """Log in; older tokens of this user become invalid. Raises AccessDenied, Unreachable.

    The server creates an unknown user if its configuration allows it; some servers ask for an `invite` code.
    """
    body = {"username": username, "password": password} | ({"invite": invite} if invite else {})
    data = await ask("POST", base_url, "/auth/login", json=body)
    lasts_s = float(data.get("accessTokenExpiresInSeconds", "inf"))
    return Account(base_url, int(data["userId"]), data["accessToken"], data.get("refreshToken", ""), lasts_s)


async def ask(method: str, base_url: str, path: str, **options: Any) -> Any:
    """Returns `data` of the answer."""
    url = base_url.rstrip("/") + path
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as http,
            http.request(method, url, **options) as answer,
        ):
            body = await answer.json(content_type=None)
    except (OSError, aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise Unreachable(f"no chat server answers at {base_url}: {error or type(error).__name__}") from error
    if not isinstance(body, Mapping) or "code" not in body:
        raise Unreachable(f"the server at {base_url} is not a chat server")
    if not body.get("ok"):
        code, message = body["code"], str(body.get("message") or "no reason given")
        if code in _DENIED:
            raise AccessDenied(_DENIED[code], message)
        raise ChatError(str(code), message)
    return body["data"]


def _stored(row: Mapping[str, Any]) -> StoredMessage:
    content = row["content"]
    return StoredMessage(
        from_user=int(row["fromUserId"]),
        to_user=int(row["toUserId"]),
        body=content if isinstance(content, str) else str(content.get("body", "")),
        client_msg_id=str(row.get("clientMsgId", "")),
        server_msg_id=int(row["serverMsgId"]),
        seq=int(row.get("msgSeq") or 0),
        status=str(row.get("status", "")),
        created_at=row.get("createdAt"),
        lang=str(row.get("lang") or ""),
        translation=(row.get("translation") or {}).get("body"),
    )
