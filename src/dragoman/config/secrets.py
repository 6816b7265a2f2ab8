"""Which secrets sign and check chat tokens.

Chat has no anonymous users: a token says who one is. Where no secret is set, on a machine of one's own, tokens are
signed with a word that everybody knows, so that clients can be tried without any setting. checks.py sees to it that
nobody else can reach an instance whose secret is that word, unless it was said that everybody is trusted.
"""

from typing import Final

from dragoman.config.schema import Config

DEVELOPMENT_SECRET: Final = "change-me-please-change-me-please-change-me"


def chat_secrets(config: Config) -> tuple[str, ...]:
    """The first one signs, all are accepted."""
    security = config.security
    return tuple(secret for secret in (security.secret or DEVELOPMENT_SECRET, security.previous_secret) if secret)


def signs_with_the_development_secret(config: Config) -> bool:
    return chat_secrets(config)[0] == DEVELOPMENT_SECRET
