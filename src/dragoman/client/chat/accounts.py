"""Accounts over HTTP: log in, keep a token that is good, look at what was said before.

    account = await login("http://127.0.0.1:5010", "alice", "secret")
    async with Chat("ws://127.0.0.1:5010/ws", token=account.token) as chat: …

`account.token` gives the access token and gets a new one by the refresh token when the old one is about to expire.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from dragoman.client.chat.errors import ChatError, Refused, Unreachable

PATIENCE_S = 10.0
REFRESH_BEFORE_S = 60.0
UNAUTHORIZED, TOO_MANY = 40100, 42900
_REFUSED = {UNAUTHORIZED: "unauthorized", 40300: "forbidden", TOO_MANY: "too_many_requests"}


@dataclass(frozen=True, slots=True)
class Said:
    """One message of a conversation, as the database has it."""

    from_user: int
    to_user: int
    body: str
    client_msg_id: str
    server_msg_id: int
    seq: int
    status: str
    created_at: Any


class Account:
    def __init__(
        self, base_url: str, user_id: int, access_token: str, refresh_token: str = "", lasts_s: float = float("inf")
    ) -> None:
        self.base_url = base_url
        self.user_id = user_id
        self._access, self._refresh = access_token, refresh_token
        self._good_until = time.monotonic() + lasts_s
        self._lasts_s = lasts_s
        self._refreshing = asyncio.Lock()

    async def token(self) -> str:
        """An access token that is good for a while. Raises Refused, Unreachable."""
        async with self._refreshing:
            left_s = self._good_until - time.monotonic()
            if self._refresh and left_s < min(REFRESH_BEFORE_S, self._lasts_s / 2):
                data = await ask("POST", self.base_url, "/auth/refresh", json={"refreshToken": self._refresh})
                self._access = str(data["accessToken"])
                self._good_until = time.monotonic() + float(data["accessTokenExpiresInSeconds"])
            return self._access

    async def history(self, peer: int, limit: int = 20, *, below_seq: int | None = None) -> list[Said]:
        """What was said with `peer`, newest first."""
        asked: dict[str, Any] = {"peerUserId": str(peer), "limit": str(limit)}
        if below_seq is not None:
            asked["lastSeq"] = str(below_seq)
        rows = await self._get("/single-chat/message/cursor", asked)
        if isinstance(rows, Mapping):
            rows = rows.get("messages", [])
        return [_said(row) for row in rows]

    async def conversations(self, limit: int = 20) -> list[dict[str, Any]]:
        """With whom we talked, the latest first, as the server tells it."""
        rows = await self._get("/single-chat/conversation/cursor", {"limit": str(limit)})
        return list(rows.get("conversations", []) if isinstance(rows, Mapping) else rows)

    async def _get(self, path: str, asked: Mapping[str, str]) -> Any:
        headers = {"Authorization": f"Bearer {await self.token()}"}
        return await ask("GET", self.base_url, path, params=asked, headers=headers)


async def login(base_url: str, username: str, password: str, *, invite: str = "") -> Account:
    """Older tokens of this user are of no use any more. Raises Refused, Unreachable.

    An unknown user is created if the server allows it, for some servers only with the `invite` code of an operator.
    """
    body = {"username": username, "password": password} | ({"invite": invite} if invite else {})
    data = await ask("POST", base_url, "/auth/login", json=body)
    lasts_s = float(data.get("accessTokenExpiresInSeconds", "inf"))
    return Account(base_url, int(data["userId"]), data["accessToken"], data.get("refreshToken", ""), lasts_s)


async def ask(method: str, base_url: str, path: str, **options: Any) -> Any:
    """`data` of the answer."""
    url = base_url.rstrip("/") + path
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S)) as http,
            http.request(method, url, **options) as answer,
        ):
            told = await answer.json(content_type=None)
    except (OSError, aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise Unreachable(f"no server of chats answers at {base_url}: {error or type(error).__name__}") from error
    if not isinstance(told, Mapping) or "code" not in told:
        raise Unreachable(f"what answers at {base_url} is no server of chats")
    if not told.get("ok"):
        code, message = told["code"], str(told.get("message") or "no reason given")
        if code in _REFUSED:
            raise Refused(_REFUSED[code], message)
        raise ChatError(str(code), message)
    return told["data"]


def _said(row: Mapping[str, Any]) -> Said:
    content = row["content"]
    return Said(
        from_user=int(row["fromUserId"]),
        to_user=int(row["toUserId"]),
        body=content if isinstance(content, str) else str(content.get("body", "")),
        client_msg_id=str(row.get("clientMsgId", "")),
        server_msg_id=int(row["serverMsgId"]),
        seq=int(row.get("msgSeq") or 0),
        status=str(row.get("status", "")),
        created_at=row.get("createdAt"),
    )
