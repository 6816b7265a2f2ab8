"""What operators ask and change of chat: shards and backlog, the switches, and where a message is."""

from typing import Any, Protocol

import msgspec
from aiohttp import web

from dragoman.archive import Archive
from dragoman.domain.chat.switches import BadSwitch, Switches
from dragoman.gateway.answers import Wrong, error, json
from dragoman.gateway.auditing import Auditor
from dragoman.gateway.bodies import Unread, body_of
from dragoman.services.chat.switchboard import Switchboard
from dragoman.services.chat.whereabouts import Whereabouts

MAX_BODY_BYTES = 16 << 10
BODY_PATIENCE_S = 10.0


class ChatSeen(Protocol):
    """What the handlers need of chat."""

    switchboard: Switchboard
    whereabouts: Whereabouts
    archive: Archive

    async def status(self) -> dict[str, Any]: ...


def routes(chat: ChatSeen, auditor: Auditor) -> list[web.RouteDef]:
    api = _Api(chat, auditor)
    return [
        web.get("/api/v1/chat", api.status),
        web.get("/api/v1/chat/switches", api.switches),
        web.post("/api/v1/chat/switches", api.switch),
        web.delete("/api/v1/chat/switches", api.reset),
        web.get("/api/v1/chat/messages/{sender}/{id}", api.message),
        web.get("/api/v1/chat/users/{name}", api.user),
    ]


class _Api:
    def __init__(self, chat: ChatSeen, auditor: Auditor) -> None:
        self._chat, self._auditor = chat, auditor

    async def status(self, _: web.Request) -> web.Response:
        return json(await self._chat.status())

    async def switches(self, _: web.Request) -> web.Response:
        return json(self._shown(self._chat.switchboard.current))

    async def switch(self, request: web.Request) -> web.Response:
        """`{"enabled": true, "rollout_percent": 50}`: some of them, for the whole cluster."""
        try:
            texts = decode_switches(await body_of(request, MAX_BODY_BYTES, BODY_PATIENCE_S))
        except Unread as why:
            raise Wrong(str(why)) from None
        try:
            before = self._chat.switchboard.current.texts()
            changed = await self._chat.switchboard.change(texts)
        except BadSwitch as wrong:
            raise Wrong(str(wrong)) from None
        after = changed.texts()
        for name in texts:
            await self._auditor.note(request, "chat.switch", name, f"{before[name]} → {after[name]}")
        return json(self._shown(changed))

    async def reset(self, request: web.Request) -> web.Response:
        configured = await self._chat.switchboard.reset()
        await self._auditor.note(request, "chat.switches.reset", "chat")
        return json(self._shown(configured))

    def _shown(self, switches: Switches) -> dict[str, Any]:
        configured = msgspec.to_builtins(self._chat.switchboard.configured)
        return {"switches": msgspec.to_builtins(switches), "configured": configured}

    async def message(self, request: web.Request) -> web.Response:
        sender = request.match_info["sender"]
        if not (sender.isascii() and sender.isdecimal() and len(sender) <= 19):
            raise Wrong("the sender is not a user id")
        return json(await self._chat.whereabouts.of(int(sender), request.match_info["id"]))

    async def user(self, request: web.Request) -> web.Response:
        found = await self._chat.archive.user_by_name(request.match_info["name"])
        if found is None:
            return error("nobody of that name has logged in yet", 404)
        return json({"userId": str(found.id), "username": found.name})


def decode_switches(data: bytes) -> dict[str, str]:
    """Switches by name, each as a text; whether there are such ones is not looked at here."""
    try:
        given = msgspec.json.decode(data, type=dict[str, bool | int | str])
    except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
        raise Wrong(f"the body is not a JSON object of switches: {wrong}") from None
    if not given:
        raise Wrong("no switch was given")
    return {name: str(value).lower() for name, value in given.items()}
