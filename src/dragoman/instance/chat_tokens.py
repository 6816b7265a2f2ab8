"""The chat tokens of an instance, as its settings say."""

from pathlib import Path

import structlog

from dragoman.config import Config
from dragoman.config.secrets import DEVELOPMENT_SECRET, BadSecrets, chat_secrets, exposure_of, has_secret
from dragoman.domain.revocation import RevocationList
from dragoman.instance.redis_check import CannotStart
from dragoman.services.chat.tokens import Tokens

log = structlog.get_logger(__name__)


def chat_tokens(config: Config, revoked: RevocationList | None = None) -> Tokens:
    """Called once at start: it says so when everybody can make tokens. Raises CannotStart."""
    try:
        secrets = chat_secrets(config)
    except BadSecrets as error:
        raise CannotStart(str(error)) from None
    if secrets[0] == DEVELOPMENT_SECRET and has_secret(config):
        log.warning(
            "the secret in use is the development secret, which is public: anyone can make tokens. Set another one, "
            "e.g. DRAGOMAN_SECURITY__SECRET=$(openssl rand -hex 32), before others can reach this server"
        )
    elif secrets[0] == DEVELOPMENT_SECRET:
        log.info(
            "security.secret is not set, so chat tokens are signed with the development secret, which is public: set "
            "security.secret before others can reach this server"
        )
    if config.security.secret_file and (exposure := exposure_of(Path(config.security.secret_file))):
        log.warning(
            f"{exposure}: chmod 600 the file of security.secret_file, or others of this machine can make tokens",
            file=config.security.secret_file,
        )
    chat = config.chat
    return Tokens(secrets, chat.issuer, chat.access_ttl_s, chat.refresh_ttl_s, revoked)
