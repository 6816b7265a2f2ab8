"""Settings for display: secrets and passwords in URLs are masked."""

import re

from dragoman.config.catalog import SETTINGS
from dragoman.config.checks import value_at
from dragoman.config.schema import Config

MASK = "***"
# Up to the last '@', so that a password with an unescaped '@' or '/' is masked whole.
_CREDENTIALS = re.compile(r"^([^:@/]*://)?(?:([^:@/]*):)?.*@", re.DOTALL)
_PASSWORD_PARAMETER = re.compile(r"([?&](?:ssl)?password=)[^&]*", re.IGNORECASE)


def masked(config: Config) -> dict[str, object]:
    """Every setting by its dotted key, in the order of the schema, with secrets masked."""
    return {key: _shown(key, value_at(config, key)) for key in SETTINGS}


def _shown(key: str, value: object) -> object:
    setting = SETTINGS[key]
    if setting.secret and value:
        return MASK
    if setting.url and isinstance(value, tuple):
        return [masked_url(url) for url in value]
    if setting.url:
        return masked_url(str(value))
    return list(value) if isinstance(value, tuple) else value


def masked_url(url: str) -> str:
    """`redis://user:***@host`; a user name alone could be a password and is masked too."""

    def without_password(found: re.Match[str]) -> str:
        scheme, user = found[1] or "", found[2]
        return f"{scheme}{MASK}@" if user is None else f"{scheme}{user}:{MASK}@"

    return _PASSWORD_PARAMETER.sub(rf"\g<1>{MASK}", _CREDENTIALS.sub(without_password, url))
