"""The secrets of the configuration in the hands of a command: looked at before serving, and signed with.

A secret is never an argument: what is on a command line can be read by everybody on the machine.
"""

import time
from pathlib import Path
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Final

from dragoman.cli.failure import USAGE, Failure

if TYPE_CHECKING:
    from dragoman.config import Config


JTI_BYTES: Final = 12  # of the id by which a token can be revoked


def check_secrets(config: "Config") -> None:
    """A file of secrets that cannot be used ends the command before anything listens."""
    from dragoman.config.secrets import BadSecrets, secrets_of

    try:
        secrets_of(config)
    except BadSecrets as error:
        raise Failure(str(error), USAGE) from None


def signing_secret(config: "Config", file: Path | None = None) -> str:
    """The one that signs: of `file`, or as configured; "" where none is set."""
    from dragoman.config.secrets import BadSecrets, read_secrets, secrets_of

    try:
        found = read_secrets(file) if file is not None else secrets_of(config)
    except BadSecrets as error:
        # A file given to a command is none of the settings.
        sentence = str(error).removeprefix("security.secret_file ") if file is not None else str(error)
        raise Failure(sentence, USAGE) from None
    return found[0] if found else ""


def made(
    config: "Config",
    kind: str,
    subject: str,
    lifetime_s: float,
    tenant: str = "",
    secret: str = "",
    *,
    gateway: bool = False,
) -> str:
    """A token of `kind`, signed as configured or with `secret`."""
    import jwt

    now = int(time.time())
    claims: dict[str, object] = {"iss": config.security.issuer, "typ": kind, "sub": subject, "iat": now}
    claims["exp"] = now + int(lifetime_s)
    claims["jti"] = token_urlsafe(JTI_BYTES)
    if tenant:
        claims["tenant"] = tenant
    if gateway:
        claims["gateway"] = True
    return jwt.encode(claims, secret or signing_secret(config), algorithm="HS256")
