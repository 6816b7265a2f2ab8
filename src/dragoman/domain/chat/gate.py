"""Whether Redis is worth asking: after a failure nobody asks for a while, then one message tries.

A Redis that takes half a second to fail must not cost every message that half second.
"""

REST_S = 2.0


class Gate:
    def __init__(self) -> None:
        self._closed_until = 0.0
        self._trying = False

    def may_ask(self, now: float) -> bool:
        """True for everybody while all is well; after a rest for one, until that one tells how it went."""
        if self._closed_until == 0.0:
            return True
        if now < self._closed_until or self._trying:
            return False
        self._trying = True
        return True

    def failed(self, now: float) -> None:
        self._closed_until = now + REST_S
        self._trying = False

    def worked(self) -> None:
        self._closed_until = 0.0
        self._trying = False

    @property
    def open(self) -> bool:
        return self._closed_until == 0.0
