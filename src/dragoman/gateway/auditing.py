"""What operators change is written down: in the log of the instance that did it, and where all of them can read it."""

import structlog
from aiohttp import web

from dragoman.gateway.principal import Principal
from dragoman.store.audit import Audit
from dragoman.store.errors import StoreError

log = structlog.get_logger(__name__)

OPERATOR = web.RequestKey("operator", Principal)  # where a request keeps who asks


class Auditor:
    def __init__(self, audit: Audit, instance: str) -> None:
        self.audit, self._instance = audit, instance

    async def note(self, request: web.Request, action: str, target: str, detail: str = "") -> None:
        """After it was done. It stays done when Redis goes away in between: then the log alone has it."""
        asking = request.get(OPERATOR)
        who = asking.subject if asking is not None else ""
        log.info("an operator changed something", who=who, action=action, target=target, detail=detail)
        try:
            await self.audit.add(who, action, target, detail, self._instance)
        except StoreError as away:
            log.warning("a change is not in the audit", action=action, target=target, error=str(away))
