"""What operators change is written down: in the log of the instance that did it, and where all of them can read it.

`ACTIONS` is the list of what can be changed. Whoever does it notes what was done; what was asked for and refused, or
failed, is noted here, so that nothing an operator tries to change goes unwritten. Who has no credential of an operator
does not get as far as this, and cannot fill the audit.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import msgspec
import structlog
from aiohttp import web

from dragoman.gateway.http_connections import OPERATOR, peer_of
from dragoman.gateway.http_messages import Wrong
from dragoman.store.audit import Audit
from dragoman.store.errors import StoreError

log = structlog.get_logger(__name__)

_NOTED = web.RequestKey("noted", bool)
DONE: Final = "done"
MAX_TEXT: Final = 300  # of one field: a target is an operator's word
ACTIONS: Final = {
    ("POST", "/api/v1/chat/switches"): "chat.switch",
    ("DELETE", "/api/v1/chat/switches"): "chat.switches.reset",
    ("POST", "/api/v1/instances/{instance}/drain"): "instance.drain",
    ("POST", "/api/v1/nodes/{node}/drain"): "node.drain",
    ("DELETE", "/api/v1/nodes/{node}/drain"): "node.undrain",
    ("DELETE", "/api/v1/sessions/{session}"): "session.end",
    ("DELETE", "/api/v1/chat/users/{user}/connection"): "chat.disconnect",
    ("POST", "/api/v1/chat/users"): "chat.user.add",
    ("DELETE", "/api/v1/chat/users/{name}"): "chat.user.remove",
    ("POST", "/api/v1/chat/users/{name}/password"): "chat.user.passwd",
    ("POST", "/api/v1/chat/invites"): "chat.invite",
    ("POST", "/api/v1/revocations"): "token.revoke",
    ("DELETE", "/api/v1/revocations/{name}"): "token.allow",
    ("POST", "/api/v1/dlq/{instance}/{id}/replay"): "dlq.replay",
    ("DELETE", "/api/v1/dlq/{instance}/{id}"): "dlq.drop",
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Auditor:
    def __init__(self, audit: Audit, instance: str) -> None:
        self.audit, self._instance = audit, instance

    async def note(
        self, request: web.Request, action: str, target: str, detail: str = "", *, result: str = DONE
    ) -> None:
        """After it was done. It stays done when Redis goes away in between: then the log alone has it."""
        request[_NOTED] = True
        asking = request.get(OPERATOR)
        who, tenant = (asking.subject, asking.tenant) if asking is not None else ("", "")
        target, detail, result = target[:MAX_TEXT], detail[:MAX_TEXT], result[:MAX_TEXT]
        about = {"tenant": tenant, "result": result, "address": peer_of(request).address}
        event = "an operator changed something" if result == DONE else "an operator could not change something"
        log.info(event, who=who, action=action, target=target, detail=detail, **about)
        try:
            await self.audit.add(who, action, target, detail, self._instance, **about)
        except StoreError as away:
            log.warning("a change is not in the audit", action=action, target=target, error=str(away))

    @web.middleware
    async def refusals(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Notes what was tried and not done."""
        resource = request.match_info.route.resource
        action = ACTIONS.get((request.method, resource.canonical if resource is not None else ""))
        if action is None or request.get(OPERATOR) is None:
            return await handler(request)
        target = "/".join(request.match_info.values()) or action.partition(".")[0]
        try:
            answer = await handler(request)
        except Exception as error:
            why = str(error) if isinstance(error, Wrong) else type(error).__name__
            if not request.get(_NOTED):
                await self.note(request, action, target, result=f"refused: {why}")
            raise
        if not request.get(_NOTED):
            await self.note(request, action, target, result=f"refused: {_why(answer)}")
        return answer


def _why(answer: web.StreamResponse) -> str:
    with suppress(AttributeError, TypeError, KeyError, msgspec.DecodeError):
        return str(msgspec.json.decode(answer.body)["error"])  # type: ignore[attr-defined]
    return str(answer.status)
