"""The operators' API of chat and tokens: shards, switches, accounts, where a message is; revoked tokens."""

import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict
from time import time
from typing import Any, Final, Protocol, TypeVar

import msgspec
from aiohttp import web

from dragoman.archive import Archive
from dragoman.archive.types import User
from dragoman.domain.chat.switches import BadSwitch, Switches
from dragoman.domain.revocation import TOKEN, is_jti, user_name
from dragoman.gateway.authentication import MAX_SUBJECT, TENANT, Authenticator
from dragoman.gateway.http_requests import (
    OPERATOR,
    BadBody,
    BadRequest,
    count_of,
    error,
    json,
    json_body,
    read_body,
    text_of,
)
from dragoman.gateway.operator_api import Auditor
from dragoman.protocol.chat import MAX_ID
from dragoman.services.chat.accounts import Accounts, Denied
from dragoman.services.chat.credentials import Overloaded
from dragoman.services.chat.feature_switches import FeatureSwitches
from dragoman.services.chat.removal import Erasure
from dragoman.services.chat.report import ChatReport
from dragoman.services.operations import NotThere, RevocationService
from dragoman.store.chat.dead_letters import ChatDeadLetters
from dragoman.store.chat.shards import Shards
from dragoman.store.chat.users import Users
from dragoman.store.revocations import MAX_ENTRIES, RevocationsFull

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
    users: Users
    shards: Shards
    dead_letters: ChatDeadLetters


def routes(chat: ChatServices, auditor: Auditor, disconnect: Disconnect) -> list[web.RouteDef]:
    """`disconnect` ends the connection of a user, wherever it is."""
    api, accounts = _Api(chat, auditor, disconnect), _Accounts(chat.accounts, auditor, disconnect)
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
        web.post("/api/v1/chat/users/{id}/erase", api.erase),
        web.post("/api/v1/chat/invites", accounts.invite),
    ]


class _Api:
    def __init__(self, chat: ChatServices, auditor: Auditor, disconnect: Disconnect) -> None:
        self._chat, self._auditor = chat, auditor
        self._erasure = Erasure(chat.archive, chat.users, chat.shards, chat.dead_letters, disconnect)

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
        sender = _user_id(request.match_info["sender"], "the sender is")
        return json(await self._chat.report.find(sender, request.match_info["id"]))

    async def erase(self, request: web.Request) -> web.Response:
        """To be repeated until it is `done`."""
        user = _user_id(request.match_info["id"], "this is")
        erased = await self._erasure.erase(user)
        counts = ", ".join(f"{name} {int(value)}" for name, value in asdict(erased).items())
        await self._auditor.note(request, "chat.user.erase", f"user {user}", counts)
        return json({"userId": str(user), **asdict(erased)})

    async def user(self, request: web.Request) -> web.Response:
        found = await self._chat.archive.user_by_name(request.match_info["name"])
        if found is None:
            return error("no user with this name has logged in yet", 404)
        return json({"userId": str(found.id), "username": found.name})


def _user_id(text: str, what: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 19 and 0 < int(text) <= MAX_ID):
        raise BadRequest(f"{what} not a user id (a number)")
    return int(text)


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


# -- operator revocation api -----------------------------------------------------------------------
#
# The operators' API for revoking tokens and principals, for allowing them again, and the list of them.


MAX_TTL_S: Final = 20 * 365 * 86_400  # a token that is valid for longer is revoked until it is allowed
_USER: Final = re.compile(r"[1-9][0-9]{0,18}")

UserByName = Callable[[str], Awaitable[User | None]]


class Revoke(msgspec.Struct, forbid_unknown_fields=True):
    """One of the first three. `ttl_s`: how long the token of `jti` is valid at most."""

    token: str = ""
    jti: str = ""
    principal: str = ""
    ttl_s: int = 0


def revocation_routes(
    revocations: RevocationService, authenticator: Authenticator, user_by_name: UserByName, auditor: Auditor
) -> list[web.RouteDef]:
    api = _Revocations(revocations, authenticator, user_by_name, auditor)
    return [
        web.get("/api/v1/revocations", api.list),
        web.post("/api/v1/revocations", api.revoke),
        web.delete("/api/v1/revocations/{name:.+}", api.allow),
    ]


class _Revocations:
    def __init__(
        self, revocations: RevocationService, authenticator: Authenticator, user_by_name: UserByName, auditor: Auditor
    ) -> None:
        self._revocations, self._authenticator = revocations, authenticator
        self._user_by_name, self._auditor = user_by_name, auditor

    async def list(self, request: web.Request) -> web.Response:
        """`count` of them, by name, `after` one."""
        count, after = count_of(request.query), text_of(request.query, "after")
        await self._revocations.run_once()
        found = [(name, entry) for name, entry in self._revocations.copy.entries(time()) if name > after]
        shown = [
            {"name": name, "at_ms": entry.at_ms, "by": entry.by, "until_ms": entry.until_ms}
            for name, entry in found[:count]
        ]
        return json({"entries": shown, "next": shown[-1]["name"] if len(found) > count else ""})

    async def revoke(self, request: web.Request) -> web.Response:
        body = await json_body(request, Revoke)
        if sum(map(bool, (body.token, body.jti, body.principal))) != 1:
            raise BadRequest("give one of token, jti and principal")
        until_ms = 0
        if body.token:
            name, until_ms = self._token(body.token)
        elif body.jti:
            name, until_ms = _jti(body.jti, body.ttl_s)
        else:
            name = await self._principal(body.principal)
        operator = request.get(OPERATOR)
        try:
            await self._revocations.revoke(name, until_ms, operator.subject if operator is not None else "")
        except RevocationsFull:
            return error(
                f"{MAX_ENTRIES} tokens and principals are revoked, which is the limit: allow some of them, revoke a "
                "principal instead of its tokens, or replace the secret",
                409,
            )
        await self._auditor.note(request, "token.revoke", name)
        return json({"name": name, "until_ms": until_ms})

    async def allow(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if not await self._revocations.allow(name):
            return error("this name is not on the list of revoked tokens and principals", 404)
        await self._auditor.note(request, "token.allow", name)
        return json({"name": name, "allowed": True})

    def _token(self, token: str) -> tuple[str, int]:
        found = self._authenticator.revocable(token)
        if found is None:
            raise BadRequest("the token was not signed with a secret of this cluster, or does not say when it expires")
        name, expires_s = found
        left_s = expires_s - time()
        if left_s <= 0:
            raise BadRequest("the token has expired: nobody can use it any more")
        return name, int(expires_s * 1000) if left_s <= MAX_TTL_S else 0

    async def _principal(self, text: str) -> str:
        kind, colon, rest = text.partition(":")
        if not colon or not rest:
            raise BadRequest("a principal is written as client:NAME, node:ID, operator:NAME, chat:NAME or user:ID")
        if kind == "chat":
            user = await self._user_by_name(rest)
            if user is None:
                raise BadRequest("there is no chat user of this name")
            return user_name(user.id)
        if kind == "user":
            if not _USER.fullmatch(rest):
                raise BadRequest("the id of a chat user is a number")
            return user_name(rest)
        if kind not in ("client", "node", "operator"):
            raise BadRequest(f"there is no class {kind[:20]!r} of principals: client, node, operator, chat or user")
        tenant, slash, subject = rest.partition("/")
        if not slash:
            tenant, subject = "default", rest
        if not TENANT.fullmatch(tenant) or not 0 < len(subject) <= MAX_SUBJECT:
            raise BadRequest(
                "a principal is written as client:NAME, or client:TENANT/NAME if its tenant is not default"
            )
        return f"{kind}:{tenant}/{subject}"


def _jti(jti: str, ttl_s: int) -> tuple[str, int]:
    if not is_jti(jti):
        raise BadRequest("a jti has 1 to 64 visible ASCII characters; revoke the token itself, or its principal")
    if not 0 <= ttl_s <= MAX_TTL_S:
        raise BadRequest(f"ttl_s is not from 0 to {MAX_TTL_S}")
    return TOKEN + jti, int((time() + ttl_s) * 1000) if ttl_s else 0
