"""Reaching Redis at start, and whether it can be worked with. Each refusal is one sentence that says what to change."""

import asyncio

import structlog

from dragoman.config import Config
from dragoman.domain.durability import DurabilityClass, Judgement, judge
from dragoman.store.errors import Refused
from dragoman.store.redis import Redis, connect

log = structlog.get_logger(__name__)

CONNECT_PATIENCE_S = 10.0


class CannotStart(Exception):
    """One sentence that says what to change."""


async def connected(config: Config, redis_url: str | None) -> Redis:
    where = config.scheduler.phase2.redis
    clustered = redis_url is None and where.mode == "cluster"
    urls = [redis_url] if redis_url is not None else list(where.cluster_urls) if clustered else [where.url]
    redis = await connect(urls, cluster=clustered, name="dragoman")
    try:
        async with asyncio.timeout(CONNECT_PATIENCE_S):
            await redis.wait_connected()
    except TimeoutError:
        why = getattr(redis, "last_error", "no master answers")
        await redis.close()
        key = "cluster_urls" if clustered else "url"
        raise CannotStart(
            f"Redis cannot be reached ({why}): start it, or change scheduler.phase2.redis.{key}"
        ) from None
    return redis


async def check_redis(redis: Redis) -> Judgement:
    """What this Redis promises; raises CannotStart when it cannot be worked with."""
    judgements = []
    infos = await redis.on_each("INFO")
    try:
        settings = await redis.on_each("CONFIG", "GET", "*")
    except Refused:
        settings = [None] * len(infos)
    for info, setting in zip(infos, settings, strict=True):
        lines = (line.partition(":") for line in info.decode().splitlines() if ":" in line)
        pairs = None
        if setting is not None:
            pairs = {k.decode(): v.decode() for k, v in zip(setting[::2], setting[1::2], strict=True)}
        judgements.append(judge({key: value for key, _, value in lines}, pairs))
    for judgement in judgements:
        if judgement.problems:
            raise CannotStart("; ".join(judgement.problems))
    weakest = max(judgements, key=lambda one: list(DurabilityClass).index(one.durability))
    for warning in weakest.warnings:
        log.warning(warning)
    return weakest
