"""The secrets that sign and verify tokens.

They are in the settings, or in a file, one per line, that running instances re-read when it changes. The first secret
signs; all are accepted. Two at a time make it possible to replace a secret without logging users out.

Chat has no anonymous users: a token identifies the user. If no secret is set, on a developer's machine, tokens are
signed with a publicly known development secret, so that clients work without configuration. This module (for the file)
and checks.py (for the settings) refuse that secret for an instance that others can reach.
"""

import ipaddress
import stat
from pathlib import Path
from typing import Final, Literal

from dragoman.config.schema import Config


def is_loopback(host: str) -> bool:
    """True for localhost and loopback addresses; not for other names, because what they resolve to may change."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


DEVELOPMENT_SECRET: Final = "change-me-please-change-me-please-change-me"
# HS256 keys shorter than the digest weaken it (RFC 7518, 3.2).
SECRET_BYTES: Final = 32
MAX_SECRETS: Final = 2
MAX_FILE_BYTES: Final = 64 << 10

Registration = Literal["open", "closed", "invite"]


class BadSecrets(Exception):
    """The file of secrets cannot be used. The message names the file and never quotes it."""


def has_secret(config: Config) -> bool:
    """Whether connections need a token."""
    return bool(config.security.secret or config.security.secret_file)


def is_private(config: Config) -> bool:
    """Whether only this machine can connect, without a token, as on a laptop."""
    return not has_secret(config) and is_loopback(config.server.host)


def registration_of(config: Config) -> Registration:
    """`chat.registration` with `auto` resolved."""
    if config.chat.registration == "auto":
        return "open" if is_private(config) else "closed"
    return config.chat.registration


def secrets_of(config: Config) -> tuple[str, ...]:
    """The current secrets; empty if none is set. Raises BadSecrets."""
    security = config.security
    if not security.secret_file:
        return tuple(secret for secret in (security.secret, security.previous_secret) if secret)
    found = read_secrets(Path(security.secret_file))
    exposed = [host for host in (config.server.host, config.server.admin_host) if not is_loopback(host)]
    if exposed and DEVELOPMENT_SECRET in found:
        raise BadSecrets(
            f"{security.secret_file} holds the development secret, which everybody knows, and others can reach "
            f"{exposed[0]}: put another there, as from `openssl rand -hex 32`."
        )
    return found


def read_secrets(path: Path) -> tuple[str, ...]:
    """One secret a line; empty lines do not count."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        lines = [line.strip() for line in data.decode().splitlines()]
    except OSError as error:
        why = (error.strerror or "unknown error").lower()
        raise BadSecrets(f"security.secret_file {path} cannot be read: {why}.") from None
    except UnicodeDecodeError:
        raise BadSecrets(f"security.secret_file {path} is not UTF-8 text.") from None
    found = tuple(line for line in lines if line)
    if not 1 <= len(found) <= MAX_SECRETS:
        raise BadSecrets(
            f"security.secret_file {path} holds {len(found) or 'no'} secrets: write one a line, the first to sign "
            f"with, and at most {MAX_SECRETS}."
        )
    if any(len(secret.encode()) < SECRET_BYTES for secret in found):
        raise BadSecrets(
            f"security.secret_file {path} holds a secret that is too short to be safe: use at least {SECRET_BYTES} "
            "bytes, as from `openssl rand -hex 32`."
        )
    return found


def exposure_of(path: Path) -> str:
    """What others of this machine can do with the file of a secret: "" for nothing, or for a file that is gone."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return ""
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "others can write it"
    return "others can read it" if mode & (stat.S_IRGRP | stat.S_IROTH) else ""


def chat_secrets(config: Config) -> tuple[str, ...]:
    """The first one signs, all are accepted; raises BadSecrets."""
    return secrets_of(config) or (DEVELOPMENT_SECRET,)
