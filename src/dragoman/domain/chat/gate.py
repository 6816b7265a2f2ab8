"""Whether Redis is worth asking: after a failure nobody asks for a while, then one message tries.

A Redis that takes half a second to fail must not cost every message that half second. One that tries and never tells
how it went (its connection was closed meanwhile) holds up nobody: after the same while another tries.
"""

REST_S = 1.0


class Gate:
    def __init__(self) -> None:
        self._closed_until: float | None = None

    def may_ask(self, now: float) -> bool:
        """True for everybody while all is well; after each rest for one."""
        if self._closed_until is None:
            return True
        if now < self._closed_until:
            return False
        self._closed_until = now + REST_S
        return True

    def failed(self, now: float) -> None:
        self._closed_until = now + REST_S

    def worked(self) -> None:
        self._closed_until = None

    @property
    def open(self) -> bool:
        return self._closed_until is None
