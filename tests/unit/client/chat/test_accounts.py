"""Accounts against a server that answers as the protocol says."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from dragoman.client.chat import AccessDenied, Account, ChatError, Unreachable, login


def answer(data: Any, code: int = 0, message: str = "ok") -> web.Response:
    told = {"ok": code == 0, "code": code, "message": message, "data": data, "ts": 1}
    return web.json_response(told, status=200 if code == 0 else code // 100)


@asynccontextmanager
async def serving(**routes: Any) -> AsyncIterator[str]:
    app = web.Application()
    for name, handler in routes.items():
        app.router.add_route("*", "/" + name.replace("__", "/").replace("_", "-"), handler)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_a_login_gives_an_account_with_a_token() -> None:
    async def logged_in(request: web.Request) -> web.Response:
        assert await request.json() == {"username": "alice", "password": "secret"}
        return answer({"userId": "7", "accessToken": "a", "refreshToken": "r", "accessTokenExpiresInSeconds": 3600})

    async with serving(auth__login=logged_in) as url:
        account = await login(url, "alice", "secret")
    assert account.user_id == 7
    assert await account.token() == "a"


@pytest.mark.parametrize(
    ("code", "error"), [(40100, AccessDenied), (42900, AccessDenied), (40000, ChatError), (50000, ChatError)]
)
async def test_a_refusal_says_why(code: int, error: type[ChatError]) -> None:
    async def refused(request: web.Request) -> web.Response:
        return answer(None, code, "wrong password")

    async with serving(auth__login=refused) as url:
        with pytest.raises(error, match="wrong password"):
            await login(url, "alice", "secret")


async def test_a_token_about_to_expire_is_replaced() -> None:
    async def refreshed(request: web.Request) -> web.Response:
        assert await request.json() == {"refreshToken": "r"}
        return answer({"userId": "7", "accessToken": "b", "accessTokenExpiresInSeconds": 3600})

    async with serving(auth__refresh=refreshed) as url:
        account = Account(url, 7, "a", "r", lasts_s=0)
        assert [await account.token(), await account.token()] == ["b", "b"]


async def test_history_is_read_with_the_token() -> None:
    async def page(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer a"
        assert request.query["peerUserId"] == "2"
        row = {
            "id": "9", "chatType": "SINGLE", "singleChatId": "1", "fromUserId": "2", "toUserId": "7", "msgType": "TEXT",
            "status": 1, "msgSeq": 3, "clientMsgId": "c", "serverMsgId": "9", "createdAt": 5, "updatedAt": 5,
            "content": "hi",
        }  # fmt: skip
        return answer([row])

    async with serving(single_chat__message__cursor=page) as url:
        (said,) = await Account(url, 7, "a").history(2)
    assert (said.from_user, said.body, said.server_msg_id, said.seq) == (2, "hi", 9, 3)


async def test_missing_server_and_other_server_are_reported() -> None:
    with pytest.raises(Unreachable, match="no chat server answers"):
        await login("http://127.0.0.1:1", "alice", "secret")

    async def other(request: web.Request) -> web.Response:
        return web.json_response({"error": "not found"}, status=404)

    async with serving(auth__login=other) as url:
        with pytest.raises(Unreachable, match="is not a chat server"):
            await login(url, "alice", "secret")
