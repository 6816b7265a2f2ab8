"""The operators' API for revoking tokens and principals, for allowing them again, and the list of them."""

import re
from collections.abc import Awaitable, Callable
from time import time
from typing import Final

import msgspec
from aiohttp import web

from dragoman.archive.types import User
from dragoman.domain.revocation import TOKEN, is_jti, user_name
from dragoman.gateway.authentication import MAX_SUBJECT, TENANT, Authenticator
from dragoman.gateway.http_requests import OPERATOR, BadRequest, count_of, error, json, json_body, text_of
from dragoman.gateway.operator_api import Auditor
from dragoman.services.revocations import RevocationService
from dragoman.store.revocations import MAX_ENTRIES, RevocationsFull

MAX_TTL_S: Final = 20 * 365 * 86_400  # a token that is valid for longer is revoked until it is allowed
_USER: Final = re.compile(r"[1-9][0-9]{0,18}")

UserByName = Callable[[str], Awaitable[User | None]]


class Revoke(msgspec.Struct, forbid_unknown_fields=True):
    """One of the first three. `ttl_s`: how long the token of `jti` is valid at most."""

    token: str = ""
    jti: str = ""
    principal: str = ""
    ttl_s: int = 0


def routes(
    revocations: RevocationService, authenticator: Authenticator, user_by_name: UserByName, auditor: Auditor
) -> list[web.RouteDef]:
    api = _Api(revocations, authenticator, user_by_name, auditor)
    return [
        web.get("/api/v1/revocations", api.list),
        web.post("/api/v1/revocations", api.revoke),
        web.delete("/api/v1/revocations/{name:.+}", api.allow),
    ]


class _Api:
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
