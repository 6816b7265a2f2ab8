"""HTTP beside the WebSockets: health, metrics, and the API for dashboards and operators."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

from dragoman.gateway.principal import Doorkeeper, Unauthorized, token_of
from dragoman.protocol.errors import ProtocolError
from dragoman.protocol.peer import decode_inbox
from dragoman.services.report import Report
from dragoman.store.errors import Refused, StoreError
from dragoman.store.inbox import Push
from dragoman.store.jobs import Jobs
from dragoman.store.letters import Letter, Letters

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
PREVIEW = 2000


@dataclass(frozen=True, slots=True)
class Backstage:
    """What the handlers need of the instance."""

    instance: str
    registry: CollectorRegistry
    report: Report
    letters: Letters
    jobs: Jobs
    stats: Callable[[], dict[str, Any]]
    ready: Callable[[], str | None]  # None, or why not


def application(stage: Backstage, doorkeeper: Doorkeeper) -> web.Application:
    """The public port: health for anybody, the rest for operators."""
    app = web.Application(middlewares=[_plain_errors, _operators_only(doorkeeper)])
    api = _Api(stage)
    app.add_routes(
        [
            *_health(stage),
            web.get("/metrics", api.metrics),
            web.get("/api/v1/cluster", api.cluster),
            web.get("/api/v1/stats", api.stats),
            web.get("/api/v1/metrics", api.metrics_json),
            web.get("/api/v1/jobs/{job}", api.job),
            web.get("/api/v1/dlq", api.letters),
            web.get("/api/v1/dlq/{instance}/{id}", api.letter),
            web.post("/api/v1/dlq/{instance}/{id}/replay", api.replay),
            web.delete("/api/v1/dlq/{instance}/{id}", api.drop),
        ]
    )
    return app


def admin_application(stage: Backstage) -> web.Application:
    """The port of this one instance: a shared port answers for a random worker."""
    app = web.Application()
    app.add_routes([*_health(stage), web.get("/metrics", _Api(stage).metrics)])
    return app


def _health(stage: Backstage) -> list[web.RouteDef]:
    async def ok(_: web.Request) -> web.Response:
        return web.Response(text="OK")

    async def ready(_: web.Request) -> web.Response:
        why = stage.ready()
        return _json({"ready": why is None, "reason": why, "instance": stage.instance}, 200 if why is None else 503)

    return [web.get("/health", ok), web.get("/health/live", ok), web.get("/health/ready", ready)]


def _operators_only(doorkeeper: Doorkeeper) -> Any:
    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path.startswith(("/api/", "/metrics")):
            headers = {name.lower(): value for name, value in request.headers.items()}
            try:
                doorkeeper.identify("operator", token_of(headers, request.query))
            except Unauthorized as error:
                return _json({"error": str(error)}, 401)
        return await handler(request)

    return check


@web.middleware
async def _plain_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Refused as error:
        return _json({"error": f"Redis refuses that: {error}"}, 400)
    except StoreError as error:
        return _json({"error": f"Redis is away: {error}"}, 503)
    except web.HTTPNotFound:
        return _json({"error": "there is nothing at this path"}, 404)
    except web.HTTPMethodNotAllowed as error:
        return _json({"error": f"only {', '.join(sorted(error.allowed_methods))} here"}, 405)


class _Api:
    def __init__(self, stage: Backstage) -> None:
        self._stage = stage

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(self._stage.registry), headers={"Content-Type": "text/plain; version=0.0.4"}
        )

    async def metrics_json(self, _: web.Request) -> web.Response:
        samples: dict[str, Any] = {}
        for family in self._stage.registry.collect():
            for sample in family.samples:
                labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
                samples[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
        return _json(samples)

    async def cluster(self, _: web.Request) -> web.Response:
        return _json(await self._stage.report.cluster())

    async def stats(self, _: web.Request) -> web.Response:
        return _json(self._stage.stats())

    async def job(self, request: web.Request) -> web.Response:
        found = await self._stage.jobs.get(request.match_info["job"])
        if found is None:
            return _json({"error": "no such job, or it ended too long ago"}, 404)
        told: dict[str, Any] = dict(found)
        if "receipt" in told:
            told["receipt"] = msgspec.json.decode(told["receipt"])
        return _json(told)

    # -- dead letters ----------------------------------------------------------------------------

    async def letters(self, request: web.Request) -> web.Response:
        letters = self._stage.letters
        wanted = request.query.get("instance")
        names = [wanted] if wanted else await letters.instances()
        count = min(int(request.query.get("count", "100")), 1000) if request.query.get("count", "1").isdigit() else 100
        found = [letter for name in names for letter in await letters.list(name, count)]
        return _json([_shown(letter) for letter in found])

    async def letter(self, request: web.Request) -> web.Response:
        letter = await self._find(request)
        return _json({**_shown(letter), "data": _preview(letter)}) if letter is not None else _no_letter()

    async def replay(self, request: web.Request) -> web.Response:
        letter = await self._find(request)
        if letter is None:
            return _no_letter()
        try:
            decode_inbox(letter.data)
        except ProtocolError as error:
            return _json({"error": f"it cannot be replayed, only dropped: {error.message}"}, 409)
        verdict = await self._stage.letters.replay(letter, self._stage.instance)
        return _json({"replayed": verdict is Push.OK, "verdict": verdict}, 200 if verdict is Push.OK else 409)

    async def drop(self, request: web.Request) -> web.Response:
        instance, id = request.match_info["instance"], request.match_info["id"]
        return _json({"dropped": True}) if await self._stage.letters.drop(instance, id) else _no_letter()

    async def _find(self, request: web.Request) -> Letter | None:
        return await self._stage.letters.get(request.match_info["instance"], request.match_info["id"])


def _no_letter() -> web.Response:
    return _json({"error": "no such dead letter"}, 404)


def _shown(letter: Letter) -> dict[str, Any]:
    return {
        "id": letter.id,
        "instance": letter.instance,
        "kind": letter.kind,
        "reason": letter.reason,
        "deliveries": letter.deliveries,
        "trace_id": letter.trace_id,
        "added_ms": letter.added_ms,
        "dead_ms": letter.dead_ms,
        "size": letter.size,
    }


def _preview(letter: Letter) -> str:
    """The head of what it carries, without audio: that is in `frame`."""
    return letter.data[:PREVIEW].decode(errors="replace").partition('"frame"')[0]


def _json(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")
