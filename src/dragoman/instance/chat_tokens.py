"""The chat tokens of an instance, as its settings say."""

import structlog

from dragoman.config import Config
from dragoman.config.secrets import chat_secrets, signs_with_the_development_secret
from dragoman.services.chat.tokens import Tokens

log = structlog.get_logger(__name__)


def chat_tokens(config: Config) -> Tokens:
    """Called once at start: it says so when everybody can make tokens."""
    if signs_with_the_development_secret(config):
        log.info(
            "chat tokens are signed with the development secret, which everybody knows: set security.secret before "
            "others can reach this"
        )
    chat = config.chat
    return Tokens(chat_secrets(config), chat.issuer, chat.access_ttl_s, chat.refresh_ttl_s)
