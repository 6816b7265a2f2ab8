"""HTTP beside chat: accounts and history. Every answer is an envelope, whatever happens.

Clients read `code`; the HTTP status says the same to what stands between. Accounts come in by a password or by the
token they bring; history is for whoever has an access token, and only ever shows what that user is part of.
No policy, no SQL: `Accounts` and `Archive` decide.
"""

from collections.abc import Awaitable, Callable
from time import monotonic, time
from typing import Final, TypeVar

import msgspec
import structlog
from aiohttp import web

from dragoman.archive import Archive, ArchiveAway, Conversation, Stored
from dragoman.domain.limits.rates import RatePerKey
from dragoman.gateway.authentication import chat_token_of
from dragoman.gateway.http_requests import BadBody, peer_of, read_body
from dragoman.protocol.chat import MAX_ID, Reason, Translation, is_lang
from dragoman.protocol.chat_http import (
    Code,
    ConversationData,
    Data,
    Envelope,
    LoginRequest,
    MemberStateData,
    MessageData,
    RefreshRequest,
    VerifyRequest,
)
from dragoman.services.chat.accounts import Accounts, Denied
from dragoman.store.errors import StoreError

log = structlog.get_logger(__name__)

MAX_LIMIT: Final = 100
DEFAULT_LIMIT: Final = 20

_STATUS: Final = {
    Code.OK: 200,
    Code.BAD_REQUEST: 400,
    Code.UNAUTHORIZED: 401,
    Code.FORBIDDEN: 403,
    Code.NOT_FOUND: 404,
    Code.TOO_MANY_REQUESTS: 429,
    Code.FAILED: 503,  # what is denied so may be asked again; what went wrong by itself is 500
}

Answer = Data | list[MessageData] | list[ConversationData]
Handler = Callable[[web.Request], Awaitable[Answer]]
_D = TypeVar("_D", bound=Data)


def routes(
    accounts: Accounts,
    archive: Archive,
    history_per_minute: int = 0,
    on_history_refused: Callable[[], None] = lambda: None,
) -> list[web.RouteDef]:
    """For whoever comes: each of them looks for itself who it is."""
    api = _Api(accounts, archive, history_per_minute, on_history_refused)
    table: list[tuple[str, str, Handler]] = [
        ("POST", "/auth/login", api.login),
        ("POST", "/auth/refresh", api.refresh),
        ("POST", "/auth/verify", api.verify),
        ("GET", "/single-chat/message/cursor", api.messages),
        ("GET", "/single-chat/conversation/cursor", api.conversations),
        ("GET", "/single-chat/member/state", api.member_state),
    ]
    found = [web.route(method, path, _enveloped(handler)) for method, path, handler in table]
    return found + [web.route("*", path, _only(method)) for method, path, _ in table]


# ---------------------------------------------------------------- the envelope


def _enveloped(handler: Handler) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(request: web.Request) -> web.Response:
        try:
            return _envelope(Code.OK, "ok", await handler(request))
        except Denied as denied:
            return _envelope(denied.code, denied.message)
        except ArchiveAway:
            return _envelope(Code.FAILED, "the database is away: try again in a moment")
        except StoreError:
            return _envelope(Code.FAILED, "Redis is away: try again in a moment")
        except Exception:
            log.exception("a chat request failed", method=request.method, path=request.path)
            return _envelope(Code.FAILED, "internal error", status=500)

    return answer


def _only(method: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        return _envelope(Code.BAD_REQUEST, f"only {method} here", status=405, headers={"Allow": method})

    return answer


def _envelope(
    code: Code,
    message: str,
    data: Answer | None = None,
    *,
    status: int | None = None,
    headers: dict[str, str] | None = None,
) -> web.Response:
    envelope = Envelope(code is Code.OK, code.value, message, data, int(time() * 1000))
    return web.Response(
        body=msgspec.json.encode(envelope),
        status=status or _STATUS[code],
        content_type="application/json",
        headers={"Cache-Control": "no-store", **(headers or {})},
    )


# ---------------------------------------------------------------- what is asked


class _Api:
    def __init__(
        self, accounts: Accounts, archive: Archive, history_per_minute: int, on_history_refused: Callable[[], None]
    ) -> None:
        self._accounts, self._archive, self._on_history_refused = accounts, archive, on_history_refused
        self._history = RatePerKey(history_per_minute) if history_per_minute else None

    async def login(self, request: web.Request) -> Answer:
        asked = await _body(request, LoginRequest)
        return await self._accounts.login(peer_of(request).address, asked.username, asked.password, asked.invite)

    async def refresh(self, request: web.Request) -> Answer:
        return await self._accounts.refresh((await _body(request, RefreshRequest)).refresh_token)

    async def verify(self, request: web.Request) -> Answer:
        return await self._accounts.verify((await _body(request, VerifyRequest)).access_token)

    async def messages(self, request: web.Request) -> Answer:
        me = await self._me(request)
        peer, limit = _needed(request, "peerUserId", 1), _limit(request)
        below_seq, below_id = _number(request, "lastSeq", 0), _number(request, "lastId", 0)
        if below_seq is not None:
            below_id = None
        found = await self._archive.history(me, peer, limit=limit, below_seq=below_seq, below_id=below_id)
        lang = _lang(request)
        translations = await self._archive.translations([stored.id for stored in found], lang) if lang else {}
        return [_message(stored, lang, translations.get(stored.id)) for stored in found]

    async def conversations(self, request: web.Request) -> Answer:
        me = await self._me(request)
        limit, updated, last = _limit(request), _number(request, "lastUpdatedAt", 0), _number(request, "lastId", 0)
        if updated is None and last is not None:
            raise Denied(Code.BAD_REQUEST, "lastUpdatedAt is missing: it goes with lastId")
        if updated is not None and last is None:
            raise Denied(Code.BAD_REQUEST, "lastId is missing: it goes with lastUpdatedAt")
        before = None if updated is None or last is None else (updated, last)
        return [_conversation(found) for found in await self._archive.conversations(me, limit=limit, before=before)]

    async def member_state(self, request: web.Request) -> Answer:
        me = await self._me(request)
        peer = _needed(request, "peerUserId", 1)
        state = await self._archive.member_state(me, peer)
        if state is None:
            raise Denied(Code.NOT_FOUND, "there is no conversation with this user yet")
        return MemberStateData(
            single_chat_id=str(state.conversation),
            peer_user_id=str(peer),
            my_last_read_msg_seq=state.my_read_seq,
            peer_last_read_msg_seq=state.peer_read_seq,
        )

    async def _me(self, request: web.Request) -> int:
        token = chat_token_of(request.headers, request.query)
        outcome = await self._accounts.identify(token)
        if isinstance(outcome, Reason):
            raise Denied(Code.UNAUTHORIZED, f"unauthorized: {outcome.value}")
        if self._history is not None and not self._history.take(outcome.uid, monotonic()):
            self._on_history_refused()
            raise Denied(Code.TOO_MANY_REQUESTS, "too many requests for history: try again in a minute")
        return outcome.uid


async def _body(request: web.Request, kind: type[_D]) -> _D:
    try:
        return decode_body(await read_body(request), kind)
    except BadBody as why:
        raise Denied(Code.BAD_REQUEST, str(why)) from None


def decode_body(data: bytes, kind: type[_D]) -> _D:
    """What a POST brings; a refusal never quotes it."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise Denied(Code.BAD_REQUEST, _wrong(error)) from None
    except (ValueError, RecursionError):
        raise Denied(Code.BAD_REQUEST, "the body is not JSON") from None


def _wrong(error: msgspec.ValidationError) -> str:
    what, _, field = str(error).partition(" - at `$.")
    return f"{field.rstrip('`')}: {what}" if field else f"the body is not a JSON object: {what}"


def _needed(request: web.Request, name: str, least: int) -> int:
    number = _number(request, name, least)
    if number is None:
        raise Denied(Code.BAD_REQUEST, f"{name} is missing")
    return number


def _limit(request: web.Request) -> int:
    limit = _number(request, "limit", 1, MAX_LIMIT)
    return DEFAULT_LIMIT if limit is None else limit


def _number(request: web.Request, name: str, least: int, most: int = MAX_ID) -> int | None:
    """A number of the query; given without a value it counts as not given."""
    text = request.query.get(name, "")
    if not text:
        return None
    if not (len(text) <= 19 and text.isascii() and text.isdecimal() and least <= int(text) <= most):
        raise Denied(Code.BAD_REQUEST, f"{name} is not a number from {least} to {most}")
    return int(text)


def _lang(request: web.Request) -> str:
    lang = request.query.get("lang", "")
    if lang and not is_lang(lang):
        raise Denied(Code.BAD_REQUEST, "lang is not a language tag")
    return lang


# ---------------------------------------------------------------- what is answered


def _message(stored: Stored, lang: str = "", translation: str | None = None) -> MessageData:
    return MessageData(
        id=str(stored.id),
        chat_type="SINGLE",
        single_chat_id=str(stored.conversation),
        from_user_id=str(stored.from_user),
        to_user_id=str(stored.to_user),
        msg_type=stored.msg_type,
        status=stored.status.name,
        msg_seq=stored.seq,
        client_msg_id=stored.client_msg_id,
        server_msg_id=str(stored.id),
        created_at=stored.created_ms,
        updated_at=stored.saved_ms,
        content=stored.body,
        lang=stored.lang or None,
        translation=None if translation is None else Translation(lang, translation),
    )


def _conversation(found: Conversation) -> ConversationData:
    return ConversationData(
        single_chat_id=str(found.id),
        peer_user_id=str(found.peer),
        updated_at=found.updated_ms,
        unread_count=found.unread,
        my_last_read_msg_seq=found.my_read_seq,
        peer_last_read_msg_seq=found.peer_read_seq,
        last_message=None if found.last is None else _message(found.last),
    )
