"""Reads the file of secrets again when it has changed, so that secrets can be rotated without a restart.

From the next token on, the first secret of the file signs and all of them are accepted; open connections stay. If the
file is missing, incomplete or invalid, nothing changes, and the log says why once. The log names each secret by a few
characters of a digest, which show which instances have which secrets.
"""

import asyncio
from collections.abc import Callable

import structlog

from dragoman.config.secrets import BadSecrets
from dragoman.domain.signing_keys import SigningKeys

log = structlog.get_logger(__name__)

POLL_S = 1.0


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
