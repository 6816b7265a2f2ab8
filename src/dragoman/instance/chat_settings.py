"""What the settings of chat mean: tokens and their secrets, the names of the streams, and the words that are masked."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from dragoman.config import Config
from dragoman.config.secrets import DEVELOPMENT_SECRET, BadSecrets, chat_secrets, exposure_of, has_secret
from dragoman.domain.chat.rules import WordFilter
from dragoman.domain.revocation import RevocationList, SigningKeys
from dragoman.instance.redis_check import CannotStart
from dragoman.services.chat.credentials import Tokens
from dragoman.store.chat.shards import StreamNames
from dragoman.store.keys import DEFAULT_PREFIX

log = structlog.get_logger(__name__)

MAX_WORD: Final = 64  # letters
MAX_WORDS: Final = 100_000


def chat_tokens(config: Config, revoked: RevocationList | None = None) -> Tokens:
    """Called once at start: logs a warning if anyone can make tokens. Raises CannotStart."""
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


def stream_names(config: Config) -> StreamNames:
    """As configured. Under another prefix than the default the names get it, so that two clusters do not share them."""
    two_phase, prefix = config.chat.two_phase, config.scheduler.phase2.redis.key_prefix
    root = "" if prefix == DEFAULT_PREFIX else f"{prefix}:"
    return StreamNames(
        root + two_phase.stream.accepted,
        root + two_phase.stream.to_save,
        two_phase.group.deliver,
        two_phase.group.save,
    )


def word_filter(config: Config) -> WordFilter:
    return WordFilter(load_words(config.chat.words_file) if config.chat.words_file else [])


def load_words(path: str | Path) -> list[str]:
    """The words of `chat.words_file`: UTF-8, one a line; raises CannotStart."""
    name = f"chat.words_file {str(path)!r}"
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise CannotStart(f"{name} cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise CannotStart(f"{name} is not UTF-8 text.") from None
    words = [line.strip() for line in lines]
    for number, word in enumerate(words, 1):
        if len(word) > MAX_WORD:
            raise CannotStart(f"{name}, line {number}: a word may have {MAX_WORD} letters.")
    words = [word for word in words if word]
    if len(words) > MAX_WORDS:
        raise CannotStart(f"{name} has {len(words)} words; {MAX_WORDS} are allowed.")
    return words


# -- secret rotation -------------------------------------------------------------------------------
#
# Reads the file of secrets again when it has changed, so that secrets can be rotated without a restart.
#
# From the next token on, the first secret of the file signs and all of them are accepted; open connections stay. If the
# file is missing, incomplete or invalid, nothing changes, and the log says why once. The log names each secret by a few
# characters of a digest, which show which instances have which secrets.

SECRETS_POLL_S = 1.0


class SecretRotation:
    def __init__(self, keys: SigningKeys, read: Callable[[], tuple[str, ...]]) -> None:
        """`read` returns the present secrets; raises BadSecrets."""
        self._keys, self._read = keys, read
        self._last_error = ""

    async def run_once(self) -> None:
        try:
            # In a thread: the file may be on a slow disk.
            found = await asyncio.to_thread(self._read)
        except BadSecrets as error:
            if str(error) != self._last_error:
                log.warning("secrets not changed", why=str(error), accepted=self._keys.names())
            self._last_error = str(error)
            return
        self._last_error = ""
        before = self._keys.names()
        if self._keys.change(found):
            now = self._keys.names()
            log.info("secrets changed", signs=now[0], accepted=now, before=before)
