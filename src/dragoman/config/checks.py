"""The problems of a configuration, and the checks between settings. Each message names both keys and the consequence.

A problem is a sentence for the operator; it never quotes a secret. Pure: a Config in, problems out. `ORDER` is a table
because most checks have the same form; the reference prints it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from ipaddress import ip_network
from itertools import product
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

from dragoman.config.catalog import plain
from dragoman.config.schema import Config
from dragoman.config.secrets import DEVELOPMENT_SECRET, SECRET_BYTES, has_secret, is_loopback


@dataclass(frozen=True, slots=True)
class Problem:
    """`keys` are the settings that it concerns; checks between settings skip them."""

    keys: tuple[str, ...]
    sentence: str


class ConfigError(Exception):
    """The configuration cannot be used. `sentences` holds every reason found."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        self.sentences = tuple(problem.sentence for problem in self.problems)
        super().__init__(self.sentences)

    def __str__(self) -> str:
        if len(self.sentences) == 1:
            return self.sentences[0]
        listed = "".join(f"\n  - {sentence}" for sentence in self.sentences)
        return f"the configuration has {len(self.sentences)} problems:{listed}"


# The largest inbox entry. What crosses from one instance to another must fit with the fields around it.
INBOX_ENTRY_BYTES = 2 * 1024 * 1024
_ENTRY_FIELDS_BYTES = 8 * 1024

_SERVER_PORT = "server.port"
_ADMIN_PORT = "server.admin_port"
_ENABLED = "scheduler.phase2.enabled"
_MODE = "scheduler.phase2.redis.mode"
_URL = "scheduler.phase2.redis.url"
_CLUSTER_URLS = "scheduler.phase2.redis.cluster_urls"
_TLS = tuple(f"scheduler.phase2.redis.tls_{part}_file" for part in ("ca", "cert", "key"))


@dataclass(frozen=True, slots=True)
class Below:
    """`lower` must be below `upper` (or, where `or_equal`, at most as much), `otherwise` …"""

    lower: str
    upper: str
    otherwise: str
    or_equal: bool = False

    @property
    def relation(self) -> Literal["must not be above", "must be below"]:
        return "must not be above" if self.or_equal else "must be below"


ORDER: tuple[Below, ...] = (
    Below(
        "scheduler.phase2.instance_presence_ttl_seconds",
        "scheduler.phase2.owner_ttl_seconds",
        "owner keys expire while their instance still counts as alive",
    ),
    Below(
        "scheduler.phase2.instance_presence_ttl_seconds",
        "speech.reservation_ttl_ms",
        "the slots of a dead instance's jobs are reserved by others before its jobs are taken over",
    ),
    Below(
        "scheduler.phase2.node_snapshot.refresh_interval_ms",
        "scheduler.phase2.node_snapshot.presence_ttl_seconds",
        "nodes expire between two refreshes",
    ),
    Below(
        "scheduler.phase2.node_snapshot.presence_ttl_seconds",
        "scheduler.phase2.node_snapshot.remove_stale_after_seconds",
        "online nodes are removed",
    ),
    Below(
        "speech.node_grace_ms",
        "speech.reservation_ttl_ms",
        "others reserve the slots of a node that reconnects within its grace",
    ),
    Below("speech.final_grace_ms", "speech.pause_ms", "a pause ends the turn before the final does"),
    Below("speech.placement_wait_ms", "speech.job_timeout_ms", "a job expires while it waits for a node"),
    Below("speech.job_ack_timeout_ms", "speech.attempt_timeout_ms", "it never has an effect", or_equal=True),
    Below("speech.attempt_timeout_ms", "speech.job_timeout_ms", "it never has an effect", or_equal=True),
    Below(
        "speech.debounce_window_s",
        "speech.unavailable_ttl_s",
        "a node gets jobs again while its reports are still ignored",
        or_equal=True,
    ),
    Below("limits.pre_session_connections", "limits.connections", "it never has an effect", or_equal=True),
    Below("chat.ping_idle_s", "chat.silent_s", "idle clients are closed before they are pinged"),
    Below("chat.access_ttl_s", "chat.refresh_ttl_s", "a refresh token is useless", or_equal=True),
)


def check(config: Config) -> Iterator[Problem]:
    yield from _order(config)
    yield from _retention(config)
    yield from _redis(config)
    yield from _entry_size(config)
    yield from _ports(config)
    yield from _origins(config)
    yield from _proxies(config)
    yield from _secrets(config)
    yield from _exposure(config)
    yield from _known_secret(config)


def value_at(config: Config, key: str) -> Any:
    return reduce(getattr, key.split("."), config)


def _order(config: Config) -> Iterator[Problem]:
    for rule in ORDER:
        lower, upper = _in_ms(config, rule.lower), _in_ms(config, rule.upper)
        if lower > upper or (lower == upper and not rule.or_equal):
            sentence = (
                f"{rule.lower} ({plain(value_at(config, rule.lower))}) {rule.relation} "
                f"{rule.upper} ({plain(value_at(config, rule.upper))}), or {rule.otherwise}."
            )
            yield Problem((rule.lower, rule.upper), sentence)


def _in_ms(config: Config, key: str) -> float:
    """Comparable with every other: seconds become milliseconds, counts stay."""
    value: float = value_at(config, key)
    return value * 1000 if key.endswith(("_s", "_seconds")) else value


def _retention(config: Config) -> Iterator[Problem]:
    chat = config.chat
    if 0 < chat.retention_days * 86_400 < chat.idempotency_ttl_s:
        sentence = (
            f"chat.retention_days ({plain(chat.retention_days)}) must be 0 or at least chat.idempotency_ttl_s "
            f"({plain(chat.idempotency_ttl_s)} s), or a message that is sent again is saved twice."
        )
        yield Problem(("chat.retention_days", "chat.idempotency_ttl_s"), sentence)


def _redis(config: Config) -> Iterator[Problem]:
    phase2, redis = config.scheduler.phase2, config.scheduler.phase2.redis
    wanted, other = (_URL, _CLUSTER_URLS) if redis.mode == "single" else (_CLUSTER_URLS, _URL)
    is_set = {_URL: bool(redis.url), _CLUSTER_URLS: bool(redis.cluster_urls)}
    if not phase2.enabled:
        for key in (key for key in is_set if is_set[key]):
            yield Problem(
                (_ENABLED, key),
                f"{key} is set but {_ENABLED} is false: set {_ENABLED} = true to join that Redis, or remove {key} "
                "to run a private one.",
            )
        return
    if not is_set[wanted]:
        yield Problem(
            (_ENABLED, _MODE, wanted),
            f"{_ENABLED} is true and {_MODE} is {redis.mode}, but {wanted} is not set"
            + (f" ({other} is, which belongs to the other mode)." if is_set[other] else "."),
        )
    elif is_set[other]:
        yield Problem(
            (_MODE, other), f"{other} is set but {_MODE} is {redis.mode}, which uses {wanted}: remove one of them."
        )
    yield from _urls(config)


def _urls(config: Config) -> Iterator[Problem]:
    redis = config.scheduler.phase2.redis
    if redis.url and not _is_url(redis.url, ("redis", "rediss", "unix")):
        yield Problem(
            (_URL,), f"{_URL} must be like redis://host:6379/0, rediss://host:6379/0 or unix:///path/to/socket."
        )
    if not all(_is_url(url, ("redis", "rediss")) for url in redis.cluster_urls):
        yield Problem((_CLUSTER_URLS,), f"{_CLUSTER_URLS} must be a list of URLs like redis://host:6379.")
    yield from _redis_tls(config)


def _redis_tls(config: Config) -> Iterator[Problem]:
    redis = config.scheduler.phase2.redis
    _, cert, key = _TLS
    if bool(redis.tls_cert_file) != bool(redis.tls_key_file):
        there, missing = (cert, key) if redis.tls_cert_file else (key, cert)
        yield Problem((there, missing), f"{there} is set but {missing} is not: a certificate is shown with its key.")
    urls = [url.strip().lower() for url in (redis.url, *redis.cluster_urls) if url]
    for setting in (setting for setting in _TLS if value_at(config, setting)):
        if urls and not all(url.startswith("rediss:") for url in urls):
            yield Problem((setting,), f"{setting} is set but Redis is reached without TLS: write rediss:// in its URL.")


def _is_url(text: str, schemes: tuple[str, ...]) -> bool:
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises on a port that is none
        if parts.scheme in ("redis", "rediss"):
            int(parse_qs(parts.query).get("db", [""])[0] or parts.path.strip("/") or 0)  # on a database that is none
    except ValueError:
        return False
    return parts.scheme in schemes and bool(parts.path if parts.scheme == "unix" else parts.hostname)


def _entry_size(config: Config) -> Iterator[Problem]:
    """A cut is at most the buffer and the chunk that overfilled it; base64 makes it a third longer."""
    frame, buffer = config.limits.frame_bytes, config.speech.max_buffer_bytes
    chunk = frame if config.speech.binary_frames else frame * 3 // 4
    if (buffer + chunk) * 4 // 3 + _ENTRY_FIELDS_BYTES > INBOX_ENTRY_BYTES:
        yield Problem(
            ("limits.frame_bytes", "speech.max_buffer_bytes"),
            f"limits.frame_bytes ({frame}) and speech.max_buffer_bytes ({buffer}) together make utterances larger "
            f"than the {INBOX_ENTRY_BYTES} bytes one instance can hand to another: lower one of them.",
        )


def _ports(config: Config) -> Iterator[Problem]:
    server = config.server
    last = server.admin_port + server.workers
    if not server.admin_port:
        return
    if last > 65535:
        yield Problem(
            (_ADMIN_PORT, "server.workers"),
            f"{_ADMIN_PORT} ({server.admin_port}) leaves no room for a port for each of server.workers "
            f"({server.workers}): lower it.",
        )
    if server.admin_port <= server.port <= last:
        yield Problem(
            (_SERVER_PORT, _ADMIN_PORT),
            f"{_SERVER_PORT} ({server.port}) lies among the admin ports, which go from {_ADMIN_PORT} "
            f"({server.admin_port}) to {last}: move one of them.",
        )


def _origins(config: Config) -> Iterator[Problem]:
    """An entry that browsers never send as an Origin would lock its page out without a word."""
    for origin in config.server.allowed_origins:
        if origin != "*" and not (_is_url(origin, ("http", "https")) and origin.count("/") == 2):
            yield Problem(
                ("server.allowed_origins",),
                f"server.allowed_origins holds {origin!r}, which is no origin: write it like https://app.example.com, "
                "without a path, or * for any.",
            )


def _proxies(config: Config) -> Iterator[Problem]:
    key = "server.trusted_proxies"
    for text in config.server.trusted_proxies:
        try:
            size = ip_network(text).prefixlen
        except ValueError as error:
            yield Problem((key,), f"{key} holds {text!r}: {error}. Write 10.0.0.5 or 10.1.0.0/16.")
            continue
        if size == 0:
            yield Problem((key,), f"{key} holds {text!r}, which is everybody: then anybody can claim any address.")
    if config.server.proxy_protocol and not config.server.trusted_proxies:
        yield Problem(
            ("server.proxy_protocol", key),
            f"server.proxy_protocol is true but {key} is empty: name the proxies that send the header.",
        )


def _secrets(config: Config) -> Iterator[Problem]:
    security = config.security
    for key, secret in (("security.secret", security.secret), ("security.previous_secret", security.previous_secret)):
        if secret and len(secret.encode()) < SECRET_BYTES:
            yield Problem(
                (key,),
                f"{key} is too short to be safe: use at least {SECRET_BYTES} bytes, as from `openssl rand -hex 32`.",
            )
    if security.secret_file and (security.secret or security.previous_secret):
        key = "security.secret" if security.secret else "security.previous_secret"
        yield Problem(
            ("security.secret_file", key),
            f"security.secret_file and {key} are both set: the file holds all that count, so remove one of them.",
        )
    elif security.previous_secret and not security.secret:
        yield Problem(
            ("security.secret", "security.previous_secret"),
            "security.previous_secret is set but security.secret is not: new tokens need one to be signed with.",
        )


def _exposure(config: Config) -> Iterator[Problem]:
    """A server that others can reach needs a secret, unless anonymous access is allowed explicitly."""
    if has_secret(config) or config.security.insecure_allow_anonymous:
        return
    for key, host in (("server.host", config.server.host), ("server.admin_host", config.server.admin_host)):
        if not is_loopback(host):
            yield Problem(
                (key, "security.secret", "security.insecure_allow_anonymous"),
                f"{key} is {host!r}, which others can reach, but security.secret is not set: set it (for example "
                f"DRAGOMAN_SECURITY__SECRET=$(openssl rand -hex 32)), listen on 127.0.0.1, or, on a network where "
                "everyone is trusted, set security.insecure_allow_anonymous = true.",
            )


def _known_secret(config: Config) -> Iterator[Problem]:
    """A server that others can reach must not use the publicly known development secret."""
    server, security = config.server, config.security
    hosts = (("server.host", server.host), ("server.admin_host", server.admin_host))
    secrets = (("security.secret", security.secret), ("security.previous_secret", security.previous_secret))
    for (where, host), (key, secret) in product(hosts, secrets):
        if secret == DEVELOPMENT_SECRET and not is_loopback(host):
            yield Problem(
                (where, key),
                f"{where} is {host!r}, which others can reach, but {key} is the development secret, which everybody "
                "knows: set another (for example DRAGOMAN_SECURITY__SECRET=$(openssl rand -hex 32)), or listen on "
                "127.0.0.1.",
            )
