"""The operators' API of chat: shards and backlog, switches, accounts, and where a message is."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import msgspec
from aiohttp import web

from dragoman.archive import Archive
from dragoman.domain.chat.switches import BadSwitch, Switches
from dragoman.gateway.http_requests import BadBody, BadRequest, error, json, json_body, read_body
from dragoman.gateway.operator_api import Auditor
from dragoman.services.chat.accounts import Accounts, Denied
from dragoman.services.chat.credentials import Overloaded
from dragoman.services.chat.feature_switches import FeatureSwitches
from dragoman.services.chat.report import ChatReport
from dragoman.services.operations import NotThere

MAX_INVITE_S = 365 * 86_400
NO_SUCH_USER = "there is no account with this name"

Disconnect = Callable[[int], Awaitable[None]]
_B = TypeVar("_B")


class ChatServices(Protocol):
    """What the handlers need of chat."""

    switches: FeatureSwitches
    report: ChatReport
    archive: Archive
    accounts: Accounts


def routes(chat: ChatServices, auditor: Auditor, disconnect: Disconnect) -> list[web.RouteDef]:
    """`disconnect` ends the connection of a user, wherever it is."""
    api, accounts = _Api(chat, auditor), _Accounts(chat.accounts, auditor, disconnect)
    return [
        web.get("/api/v1/chat", api.status),
        web.get("/api/v1/chat/switches", api.switches),
        web.post("/api/v1/chat/switches", api.switch),
        web.delete("/api/v1/chat/switches", api.reset),
        web.get("/api/v1/chat/messages/{sender}/{id}", api.message),
        web.get("/api/v1/chat/users/{name}", api.user),
        web.post("/api/v1/chat/users", accounts.add),
        web.delete("/api/v1/chat/users/{name}", accounts.remove),
        web.post("/api/v1/chat/users/{name}/password", accounts.set_password),
        web.post("/api/v1/chat/invites", accounts.invite),
    ]


class _Api:
    def __init__(self, chat: ChatServices, auditor: Auditor) -> None:
        self._chat, self._auditor = chat, auditor

    async def status(self, _: web.Request) -> web.Response:
        return json(await self._chat.report.status())

    async def switches(self, _: web.Request) -> web.Response:
        return json(self._shown(self._chat.switches.current))

    async def switch(self, request: web.Request) -> web.Response:
        """`{"enabled": true, "rollout_percent": 50}`: some of them, for the whole cluster."""
        try:
            texts = decode_switches(await read_body(request))
        except BadBody as why:
            raise BadRequest(str(why)) from None
        try:
            before = self._chat.switches.current.texts()
            changed = await self._chat.switches.change(texts)
        except BadSwitch as wrong:
            raise BadRequest(str(wrong)) from None
        after = changed.texts()
        for name in texts:
            await self._auditor.note(request, "chat.switch", name, f"{before[name]} → {after[name]}")
        return json(self._shown(changed))

    async def reset(self, request: web.Request) -> web.Response:
        configured = await self._chat.switches.reset()
        await self._auditor.note(request, "chat.switches.reset", "chat")
        return json(self._shown(configured))

    def _shown(self, switches: Switches) -> dict[str, Any]:
        configured = msgspec.to_builtins(self._chat.switches.configured)
        return {"switches": msgspec.to_builtins(switches), "configured": configured}

    async def message(self, request: web.Request) -> web.Response:
        sender = request.match_info["sender"]
        if not (sender.isascii() and sender.isdecimal() and len(sender) <= 19):
            raise BadRequest("the sender is not a user id (a number)")
        return json(await self._chat.report.find(int(sender), request.match_info["id"]))

    async def user(self, request: web.Request) -> web.Response:
        found = await self._chat.archive.user_by_name(request.match_info["name"])
        if found is None:
            return error("no user with this name has logged in yet", 404)
        return json({"userId": str(found.id), "username": found.name})


class NewUser(msgspec.Struct):
    username: str
    password: str


class NewPassword(msgspec.Struct):
    password: str


class NewInvite(msgspec.Struct):
    ttl_s: int


class _Accounts:
    """Accounts. A password is in no response, no log line and no audit entry."""

    def __init__(self, accounts: Accounts, auditor: Auditor, disconnect: Disconnect) -> None:
        self._accounts, self._auditor, self._disconnect = accounts, auditor, disconnect

    async def add(self, request: web.Request) -> web.Response:
        new = await json_body(request, NewUser)
        user = await _allowed(self._accounts.add(new.username, new.password))
        if user is None:
            return error("an account with this name exists already", 409)
        await self._auditor.note(request, "chat.user.add", user.name, f"user {user.id}")
        return json({"userId": str(user.id), "username": user.name})

    async def set_password(self, request: web.Request) -> web.Response:
        name, new = request.match_info["name"], await json_body(request, NewPassword)
        user = await _allowed(self._accounts.set_password(name, new.password))
        if user is None:
            return error(NO_SUCH_USER, 404)
        await self._auditor.note(request, "chat.user.passwd", name, f"user {user}")
        await self._end_connection(user)
        return json({"userId": str(user), "username": name})

    async def remove(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        user = await self._accounts.remove(name)
        if user is None:
            return error(NO_SUCH_USER, 404)
        await self._auditor.note(request, "chat.user.remove", name, f"user {user}")
        await self._end_connection(user)
        return json({"userId": str(user), "removed": True})

    async def invite(self, request: web.Request) -> web.Response:
        ttl_s = (await json_body(request, NewInvite)).ttl_s
        if not 1 <= ttl_s <= MAX_INVITE_S:
            raise BadRequest(f"ttl_s is not from 1 to {MAX_INVITE_S}")
        code = await self._accounts.invite(ttl_s)
        if code is None:
            return error('invite codes are not used here: set chat.registration = "invite"', 409)
        await self._auditor.note(request, "chat.invite", "chat", f"for {ttl_s} s")
        return json({"invite": code, "expiresInSeconds": ttl_s})

    async def _end_connection(self, user: int) -> None:
        """The tokens are invalid already: a connection that cannot be reached now is closed at its next frame."""
        with suppress(NotThere):
            await self._disconnect(user)


async def _allowed(doing: Awaitable[_B]) -> _B:
    try:
        return await doing
    except Denied as denied:
        raise BadRequest(denied.message) from None
    except Overloaded:
        raise BadRequest("too many passwords are being checked: try again in a moment") from None


def decode_switches(data: bytes) -> dict[str, str]:
    """Switches by name, each as a text; the names are checked later."""
    try:
        given = msgspec.json.decode(data, type=dict[str, bool | int | str])
    except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
        raise BadRequest(f"the body is not a JSON object of switches: {wrong}") from None
    if not given:
        raise BadRequest("the body names no switch")
    return {name: str(value).lower() for name, value in given.items()}
