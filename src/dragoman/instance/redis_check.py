"""Connects to Redis at the start and checks whether it can be used. Each error says what to change."""

import asyncio
import ssl
from collections.abc import Iterator, Sequence
from pathlib import Path

import structlog

from dragoman.config import Config
from dragoman.config.schema import Redis as RedisSettings
from dragoman.config.secrets import exposure_of, is_loopback
from dragoman.domain.durability import Assessment, DurabilityClass, assess
from dragoman.store.link import NO_CREDENTIALS, Address, Credentials
from dragoman.store.redis import Redis, connect

log = structlog.get_logger(__name__)

CONNECT_TIMEOUT_S = 10.0


class CannotStart(Exception):
    """One sentence that says what to change."""


async def connected(config: Config, redis_url: str | None) -> Redis:
    where = config.scheduler.phase2.redis
    clustered = redis_url is None and where.mode == "cluster"
    urls = [redis_url] if redis_url is not None else list(where.cluster_urls) if clustered else [where.url]
    credentials = credentials_of(where) if redis_url is None else NO_CREDENTIALS  # the private one needs none
    redis = await connect(urls, cluster=clustered, name="dragoman", credentials=credentials)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await redis.wait_connected()
    except TimeoutError:
        why = getattr(redis, "last_error", "no master answers")
        await redis.close()
        key = "cluster_urls" if clustered else "url"
        raise CannotStart(
            f"Redis cannot be reached ({why}): start it, or change scheduler.phase2.redis.{key}"
        ) from None
    return redis


def credentials_of(where: RedisSettings) -> Credentials:
    """From the files that the settings name; raises CannotStart."""
    context = None
    section = "scheduler.phase2.redis"
    try:
        if where.tls_ca_file or where.tls_cert_file:
            context = ssl.create_default_context(cafile=where.tls_ca_file or None)
        if context is not None and where.tls_cert_file:
            # A key with a passphrase is an error, not a question to the terminal.
            context.load_cert_chain(where.tls_cert_file, where.tls_key_file, password="")
    except (OSError, ValueError) as error:
        files = f"{section}.tls_ca_file, {section}.tls_cert_file and {section}.tls_key_file"
        raise CannotStart(f"the files of {files} cannot be used for TLS: {error}") from None
    try:
        lines = Path(where.password_file).read_text(encoding="utf-8").splitlines() if where.password_file else [""]
    except (OSError, UnicodeDecodeError) as error:
        raise CannotStart(f"{section}.password_file cannot be read: {error}") from None
    if where.password_file and not (lines and lines[0].strip()):
        raise CannotStart(f"{section}.password_file {where.password_file} has no password in its first line")
    return Credentials(lines[0].strip(), context)


def unsafe(config: Config) -> Iterator[str]:
    """Warnings about a shared Redis that others can read or change; raises CannotStart."""
    where = config.scheduler.phase2.redis
    if not config.scheduler.phase2.enabled:
        return
    urls = where.cluster_urls if where.mode == "cluster" else (where.url,)
    credentials = credentials_of(where)
    addresses = [Address.parse(url, credentials) for url in urls]
    remote = [address for address in addresses if not address.path and not is_loopback(address.host)]
    if any(not address.tls for address in remote):
        yield "Redis is on another machine and is reached without TLS: the network can read and change its data"
    if any(not address.password for address in remote) and not where.tls_cert_file:
        yield "Redis is on another machine and needs no password: anyone who can reach it can read and change its data"
    if where.tls_key_file and (exposure := exposure_of(Path(where.tls_key_file))):
        yield f"{exposure}: chmod 600 the file of scheduler.phase2.redis.tls_key_file"


async def check_redis(redis: Redis) -> Assessment:
    """What this Redis guarantees; raises CannotStart if it cannot be used."""
    infos = await redis.info()
    settings: Sequence[dict[str, str] | None] = await redis.server_settings() or [None] * len(infos)
    assessments = [assess(*server) for server in zip(infos, settings, strict=True)]
    for assessment in assessments:
        if assessment.problems:
            raise CannotStart("; ".join(assessment.problems))
    weakest = max(assessments, key=lambda one: list(DurabilityClass).index(one.durability))
    for warning in weakest.warnings:
        log.warning(warning)
    return weakest
