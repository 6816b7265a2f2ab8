"""Rooms over HTTP: operators open, list and close them, guests get a token, and whoever may read gets the transcript.

A transcript is for operators, and for clients of the room's tenant that are in the room, that opened it, or whose token
is for this room. For every other client the room does not exist. Without a secret everybody here is an operator, so the
id of the room is enough.
"""

import asyncio
from typing import Final

import msgspec
import structlog
from aiohttp import web

from dragoman.domain.rooms import Role
from dragoman.domain.transcripts import CONTENT_TYPES, Format, transcript, written
from dragoman.gateway.authentication import GUEST_LIFETIME_S, ROOM_ID, Authenticator, Principal, Unauthorized, token_of
from dragoman.gateway.http_requests import (
    OPERATOR,
    BadRequest,
    count_of,
    error,
    json,
    json_body,
    peer_of,
    text_of,
)
from dragoman.gateway.operator_api import Auditor
from dragoman.protocol import ids
from dragoman.protocol.codes import RoomEnd, RoomErrorCode
from dragoman.protocol.fields import Id, Lang, Name
from dragoman.protocol.rooms import Terms
from dragoman.services.report import RoomListings
from dragoman.services.rooms.membership import RoomMembership, RoomRefused, RoomSettings, clean_name, settings_of
from dragoman.store.rooms.rooms import RoomInfo, Rooms

log = structlog.get_logger(__name__)

NO_ROOM: Final = "there is no such room, or its transcript has expired"
NO_CAPTION: Final = "no such caption, or its speaker has left: name the room"
NOT_FOR_GUESTS: Final = "this room is not open to guests"
LOCKED: Final = "the host has locked the room"
_STATUS: Final = {RoomErrorCode.INVALID_ROOM_CODE: 404, RoomErrorCode.LIMIT_EXCEEDED: 429}
_decode_lang: Final = msgspec.json.Decoder(Lang).decode


class OpenRoom(msgspec.Struct, forbid_unknown_fields=True):
    persistent: bool = False
    locked: bool = False
    guests: bool = True
    vocabulary: Terms = []


class JoinRoom(msgspec.Struct, forbid_unknown_fields=True):
    """One of the first two."""

    room_id: Id = ""
    code: Id = ""
    name: Name = ""


def operator_routes(membership: RoomMembership, listings: RoomListings, auditor: Auditor) -> list[web.RouteDef]:
    api = _OperatorApi(membership, listings, auditor)
    return [
        web.post("/api/v1/rooms", api.open),
        web.get("/api/v1/rooms", api.list),
        web.get("/api/v1/rooms/{room}", api.show),
        web.delete("/api/v1/rooms/{room}", api.close),
        web.get("/api/v1/captions/{caption}", api.caption),
    ]


def public_routes(membership: RoomMembership, store: Rooms, authenticator: Authenticator) -> list[web.RouteDef]:
    """Each of them checks itself who asks."""
    api = _PublicApi(membership, store, authenticator)
    return [
        web.post("/api/v1/rooms/join", api.join),
        web.get("/api/v1/rooms/{room}/transcript", api.transcript),
    ]


class _OperatorApi:
    def __init__(self, membership: RoomMembership, listings: RoomListings, auditor: Auditor) -> None:
        self._membership, self._listings, self._auditor = membership, listings, auditor

    async def open(self, request: web.Request) -> web.Response:
        wanted, operator = await json_body(request, OpenRoom), request[OPERATOR]
        try:
            room_id = await self._membership.open_room(
                tenant=operator.tenant,
                creator=f"~operator/{operator.subject}",
                settings=RoomSettings(wanted.guests, tuple(wanted.vocabulary)),
                persistent=wanted.persistent,
                locked=wanted.locked,
            )
        except RoomRefused as refused:
            return error(refused.message, 503)
        await self._auditor.note(request, "room.open", room_id)
        return json(await self._listings.room(room_id))

    async def list(self, request: web.Request) -> web.Response:
        """`count` open rooms in the order of their ids, from `after` on; `part` is in their id or code."""
        query = request.query
        return json(await self._listings.rooms(count_of(query), text_of(query, "after"), text_of(query, "part")))

    async def show(self, request: web.Request) -> web.Response:
        found = await self._listings.room(request.match_info["room"], with_members=True)
        return json(found) if found is not None else error(NO_ROOM, 404)

    async def caption(self, request: web.Request) -> web.Response:
        """Its recognition and its translations; `room`: its room, if its speaker is not there any more."""
        room = text_of(request.query, "room")
        if room and not ROOM_ID.fullmatch(room):
            raise BadRequest("room is not the id of a room")
        found = await self._listings.caption(request.match_info["caption"], room)
        return json(found) if found is not None else error(NO_CAPTION, 404)

    async def close(self, request: web.Request) -> web.Response:
        room_id = request.match_info["room"]
        if not await self._membership.close_room(room_id, RoomEnd.OPERATOR):
            return error("there is no open room with this id", 404)
        await self._auditor.note(request, "room.close", room_id)
        return json({"closed": True})


class _PublicApi:
    def __init__(self, membership: RoomMembership, store: Rooms, authenticator: Authenticator) -> None:
        self._membership, self._store, self._authenticator = membership, store, authenticator
        self._writing = asyncio.Lock()  # a long transcript takes a moment: one at a time

    # -- guests ----------------------------------------------------------------------------------

    async def join(self, request: web.Request) -> web.Response:
        """A token for a guest, or a new one for a guest that is in the room."""
        asked = await json_body(request, JoinRoom)
        if bool(asked.room_id) == bool(asked.code):
            raise BadRequest("give one of room_id and code")
        try:
            room_id = asked.room_id or await self._membership.room_of_code(asked.code, peer_of(request).address)
        except RoomRefused as refused:
            return error(refused.message, _STATUS.get(refused.code, 403))
        info = await self._store.info(room_id) if ROOM_ID.fullmatch(room_id) else None
        if info is None or info.closed:
            return error("there is no such room", 404)
        answer = {"room_id": room_id, "code": info.code, "name": clean_name(asked.name), "role": Role.SPEAKER.value}
        if not self._authenticator.has_secret:
            return json({**answer, "token": "", "expires_in_s": 0})
        token = _token(request)
        if token:
            return await self._renewed(token, info, answer)
        if not settings_of(info).guests:
            return error(NOT_FOR_GUESTS, 403)
        if info.locked:
            return error(LOCKED, 403)
        return self._admitted(info, Role.SPEAKER, "", answer)

    async def _renewed(self, token: str, info: RoomInfo, answer: dict[str, str]) -> web.Response:
        try:
            guest = self._authenticator.identify("client", token)
        except Unauthorized as why:
            return error(str(why), 401)
        claim = guest.room_claim
        if claim is None or claim.room != info.room or guest.tenant != info.tenant:
            return error("the token is not one for this room", 403)
        if not await self._is_member(guest, info):
            return error("the guest is not in the room: join without a token", 403)
        return self._admitted(info, claim.role, guest.subject, answer)

    def _admitted(self, info: RoomInfo, role: Role, subject: str, answer: dict[str, str]) -> web.Response:
        token, guest = self._authenticator.sign_guest(info.room, role, info.tenant, subject)
        log.info("token for a guest", room=info.room, subject=guest.subject, renewed=bool(subject))
        return json({**answer, "role": role.value, "token": token, "expires_in_s": GUEST_LIFETIME_S})

    # -- transcripts -----------------------------------------------------------------------------

    async def transcript(self, request: web.Request) -> web.Response:
        """`lang`: in this language, or empty as it was said; `format`: vtt, srt, txt or json."""
        lang, format = _lang(text_of(request.query, "lang")), _format(text_of(request.query, "format"))
        try:
            reader = self._reader(request)
        except Unauthorized as why:
            return error(str(why), 401)
        room_id = request.match_info["room"]
        info = await self._store.info(room_id) if ROOM_ID.fullmatch(room_id) else None
        if info is None or not await self._may_read(reader, info):
            return error(NO_ROOM, 404)
        async with self._writing:
            entries = await self._store.read_all(room_id)
            body = await asyncio.to_thread(lambda: written(transcript(entries, lang), format))
        if format is Format.JSON:
            complete = not entries or entries[0].seq == 1
            about = {"room_id": room_id, "code": info.code, "lang": lang, "complete": complete}
            body = msgspec.json.encode({**about, "created_ms": info.created_ms, "lines": msgspec.Raw(body)})
        name = f"room-{info.code}{f'-{lang}' if lang else ''}.{format}"
        return web.Response(
            body=body,
            content_type=CONTENT_TYPES[format],
            charset=None if format is Format.JSON else "utf-8",
            headers={"Content-Disposition": f'attachment; filename="{name}"'},
        )

    def _reader(self, request: web.Request) -> Principal:
        """An operator, or a client. Raises Unauthorized."""
        token = _token(request)
        try:
            return self._authenticator.identify("operator", token)
        except Unauthorized:
            return self._authenticator.identify("client", token)

    async def _may_read(self, reader: Principal, info: RoomInfo) -> bool:
        if reader.kind == "operator":
            return True
        if reader.anonymous or ids.tenant_of(reader.owner) != info.tenant:
            return False
        if await self._store.is_removed(info.room, reader.owner):
            return False
        claim = reader.room_claim
        if claim is not None:
            return claim.room == info.room
        return info.creator == reader.owner or await self._is_member(reader, info)

    async def _is_member(self, principal: Principal, info: RoomInfo) -> bool:
        return any(member.principal == principal.owner for member in await self._store.members(info.room))


def _token(request: web.Request) -> str | None:
    return token_of({name.lower(): value for name, value in request.headers.items()}, request.query)


def _lang(text: str) -> str:
    try:
        return _decode_lang(msgspec.json.encode(text)) if text else ""
    except msgspec.ValidationError:
        raise BadRequest("lang is not the code of a language, such as en or pt-BR") from None


def _format(text: str) -> Format:
    try:
        return Format(text or Format.VTT)
    except ValueError:
        raise BadRequest(f"format is not one of {', '.join(Format)}") from None
