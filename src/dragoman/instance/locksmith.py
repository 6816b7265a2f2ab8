"""Changes the locks while people are in the house: reads the file of secrets again when it has changed.

The first secret of the file signs, all are accepted, from the next token on; who came in before stays. A file that is
gone, half written or wrong changes nothing: what was valid stays valid, and the log says once what is the matter. The
log names secrets by a few letters of a digest, so that one can see which instances have which.
"""

import asyncio
from collections.abc import Callable

import structlog

from dragoman.config.secrets import BadSecrets
from dragoman.domain.keyring import Keyring

log = structlog.get_logger(__name__)

LOOK_S = 1.0


class Locksmith:
    def __init__(self, keyring: Keyring, read: Callable[[], tuple[str, ...]]) -> None:
        """`read`: the secrets there are now, or BadSecrets."""
        self._keyring, self._read = keyring, read
        self._complaint = ""

    async def run_once(self) -> None:
        try:
            # In a thread: the file may be on a disk that takes its time.
            found = await asyncio.to_thread(self._read)
        except BadSecrets as error:
            if str(error) != self._complaint:
                log.warning("the secrets stay as they were", why=str(error), accepted=self._keyring.names())
            self._complaint = str(error)
            return
        self._complaint = ""
        before = self._keyring.names()
        if self._keyring.change(found):
            now = self._keyring.names()
            log.info("the secrets have changed", signs=now[0], accepted=now, before=before)
