"""The checklist of `dragoman config check --exposed`: is this configuration fit for a server on the internet?

`CHECKLIST` is printed in docs/guides/secure.md. `check_configuration` looks at the settings as the server would load
them, and at the files they name. `probe` asks a running server what a stranger gets.
"""

import http.client
import re
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

from dragoman.config import Loaded
from dragoman.config.secrets import (
    DEVELOPMENT_SECRET,
    BadSecrets,
    exposure_of,
    has_secret,
    is_loopback,
    registration_of,
    secrets_of,
)
from dragoman.instance.redis_check import CannotStart, unsafe

MIN_DISTINCT: Final = 10  # different characters of a strong secret: 32 random hexadecimal digits have 14 on average
MIN_PASSWORD: Final = 8
MAX_LOGINS_PER_MINUTE: Final = 60
WIDEST: Final = {4: 16, 6: 48}  # prefix length of the largest network that is believably a set of proxies
UNLIMITED: Final = (
    "connections_per_address",
    "sessions_per_principal",
    "sessions_per_gateway",
    "sessions_per_address",
    "utterances_per_s",
    "gateway_utterances_per_s",
    "open_jobs_per_session",
    "open_jobs_per_principal",
    "open_jobs_per_gateway",
    "chat_bytes_per_day",
    "chat_history_per_minute",
)
_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Problem:
    what: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the checklist; no problems: it is fulfilled."""

    name: str
    requirement: str
    problems: tuple[Problem, ...]


Problems = Iterator[Problem]


def _secret(loaded: Loaded) -> Problems:
    config = loaded.config
    if not has_secret(config):
        yield Problem("no secret is set: anybody can connect", "set security.secret_file (`openssl rand -hex 32`)")


def _strong(loaded: Loaded) -> Problems:
    try:
        secrets = secrets_of(loaded.config)
    except BadSecrets as why:
        yield Problem(str(why), "write one secret per line, as from `openssl rand -hex 32`")
        return
    if DEVELOPMENT_SECRET in secrets:
        yield Problem("the development secret is in use, which is public", "use another: `openssl rand -hex 32`")
    elif any(len(set(secret)) < MIN_DISTINCT for secret in secrets):
        yield Problem("a secret can be guessed: it repeats few characters", "use another: `openssl rand -hex 32`")


def _secret_files(loaded: Loaded) -> Problems:
    security, redis = loaded.config.security, loaded.config.scheduler.phase2.redis
    files = {"security.secret_file": security.secret_file, "scheduler.phase2.redis.password_file": redis.password_file}
    files["scheduler.phase2.redis.tls_key_file"] = redis.tls_key_file
    for key in ("security.secret", "security.previous_secret", "scheduler.phase2.redis.url", "archive.url"):
        if loaded.sources[key].origin == "file":
            files[key] = loaded.sources[key].place
    for key, file in files.items():
        if file and (exposure := exposure_of(Path(file))):
            yield Problem(f"{file} ({key}): {exposure}", f"chmod 600 {file}")


def _anonymous(loaded: Loaded) -> Problems:
    if loaded.config.security.insecure_allow_anonymous:
        yield Problem(
            "clients and nodes need no token", "remove security.insecure_allow_anonymous and give them tokens"
        )


def _proxy(loaded: Loaded) -> Problems:
    server = loaded.config.server
    if not server.trusted_proxies:
        yield Problem(
            "no proxy is trusted, so clients connect without TLS or all have the address of the proxy",
            "put a proxy with TLS in front and name its address in server.trusted_proxies",
        )
    for text in server.trusted_proxies:
        network = ip_network(text)
        if network.prefixlen < WIDEST[network.version]:
            yield Problem(
                f"server.trusted_proxies holds {text}: every machine there may claim any client address",
                "name the addresses of the proxies only",
            )


def _admin(loaded: Loaded) -> Problems:
    host = loaded.config.server.admin_host
    if not is_loopback(host) and not _is_private(host):
        yield Problem(
            f"the admin port listens on {host}, which may be public",
            "set server.admin_host to 127.0.0.1, or to the address of a private network",
        )


def _is_private(host: str) -> bool:
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return False
    return address.is_private and not address.is_unspecified


def _origins(loaded: Loaded) -> Problems:
    for origin in loaded.config.server.allowed_origins:
        if origin == "*":
            yield Problem("pages of every site may connect", "name the origins in server.allowed_origins instead of *")
        elif origin.startswith("http:"):
            yield Problem(f"pages of {origin} come without TLS, so others can change them", "allow its https origin")


def _registration(loaded: Loaded) -> Problems:
    if registration_of(loaded.config) == "open":
        yield Problem("anybody can create chat accounts", "set chat.registration to closed or invite")
    if loaded.config.chat.min_password_length < MIN_PASSWORD:
        yield Problem("new passwords may be short", f"set chat.min_password_length to {MIN_PASSWORD} or more")


def _chat_tokens(loaded: Loaded) -> Problems:
    if loaded.config.security.chat_tokens_for_speech:
        yield Problem(
            "every chat user may use speech, also with a token that a later login has ended",
            "remove security.chat_tokens_for_speech and give clients tokens of their own",
        )


def _redis(loaded: Loaded) -> Problems:
    try:
        for sentence in unsafe(loaded.config):
            yield Problem(sentence, "use rediss:// and a password (scheduler.phase2.redis.password_file)")
    except CannotStart as why:
        yield Problem(str(why), "correct scheduler.phase2.redis")


def _database(loaded: Loaded) -> Problems:
    url = urlsplit(loaded.config.archive.url)
    if not url.scheme.startswith("postgres") or not url.hostname or is_loopback(url.hostname):
        return
    if parse_qs(url.query).get("sslmode", [""])[0] not in ("require", "verify-ca", "verify-full"):
        yield Problem(
            "the database is on another machine and may be reached without TLS",
            "add ?sslmode=verify-full to archive.url",
        )


def _limits(loaded: Loaded) -> Problems:
    limits = loaded.config.limits
    for name in UNLIMITED:
        if not getattr(limits, name):
            yield Problem(f"limits.{name} is 0, which is any number", "remove it, or set a number")
    if limits.login_attempts_per_minute > MAX_LOGINS_PER_MINUTE:
        yield Problem(
            f"passwords can be guessed quickly: limits.login_attempts_per_minute is {limits.login_attempts_per_minute}",
            f"set it to {MAX_LOGINS_PER_MINUTE} or less",
        )


CHECKLIST: Final[tuple[tuple[str, str, Callable[[Loaded], Problems]], ...]] = (
    ("secret", "A secret is set, so that everybody needs a token.", _secret),
    ("strong", "The secret has at least 32 bytes, is not the development secret and cannot be guessed.", _strong),
    ("files", "Only their owner can read the files that hold secrets.", _secret_files),
    ("anonymous", "Nobody connects without a token.", _anonymous),
    ("proxy", "A proxy with TLS is in front, and only its address is trusted.", _proxy),
    ("admin", "The admin port is on loopback or a private network.", _admin),
    ("origins", "Only named https pages may connect, or none but those of this host.", _origins),
    ("accounts", "Not everybody can create a chat account, and passwords have a minimum length.", _registration),
    ("speech", "Chat tokens do not open speech.", _chat_tokens),
    ("redis", "A Redis on another machine is reached with TLS and a password.", _redis),
    ("database", "A database on another machine is reached with TLS.", _database),
    ("limits", "No limit is switched off.", _limits),
)


def check_configuration(loaded: Loaded) -> list[Result]:
    return [Result(name, requirement, tuple(check(loaded))) for name, requirement, check in CHECKLIST]


# -- a running server -----------------------------------------------------------------------------


def probe(url: str) -> list[Result]:
    """What a stranger gets at `url`. Only reads; raises OSError if nothing answers."""
    https = () if url.startswith("https:") else (Problem("the URL is http", "serve it with TLS"),)
    _, headers = _ask(url, "/health")
    server = headers.get("Server", "")
    versions = re.search(r"\d", server)
    shown = (Problem(f"answers name a version: {server}", "remove the header Server in the proxy"),) if versions else ()
    return [
        Result("url tls", "The server is reached with TLS.", https),
        Result("url server", "Answers name no versions.", shown),
        Result("url operators", "Operator paths need a token.", tuple(_open_paths(url))),
        Result("url origin", "Pages of other sites cannot connect.", tuple(_foreign_page(url))),
    ]


def _open_paths(url: str) -> Problems:
    for path in ("/api/v1/cluster", "/api/v1/sessions", "/metrics"):
        status, _ = _ask(url, path)
        if status < 400:
            yield Problem(f"{path} answers without a token", "set a secret, and restart the server with it")


def _foreign_page(url: str) -> Problems:
    for path in ("/ws/session", "/ws"):
        headers = {
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "ZHJhZ29tYW4tZXhwb3NlZA==",
            "Origin": "https://origin.invalid",
        }
        status, _ = _ask(url, path, headers)
        if status == http.client.SWITCHING_PROTOCOLS:
            yield Problem(f"{path} accepts a page of another site", "name the origins in server.allowed_origins")


def _ask(url: str, path: str, headers: dict[str, str] | None = None) -> tuple[int, http.client.HTTPMessage]:
    parts = urlsplit(url)
    host = parts.hostname or ""
    connection = (
        http.client.HTTPSConnection(host, parts.port, timeout=_TIMEOUT_S, context=ssl.create_default_context())
        if parts.scheme == "https"
        else http.client.HTTPConnection(host, parts.port, timeout=_TIMEOUT_S)
    )
    try:
        connection.request("GET", parts.path.rstrip("/") + path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.headers
    finally:
        connection.close()
