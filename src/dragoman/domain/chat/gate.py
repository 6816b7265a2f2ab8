"""A circuit breaker for Redis: after a failure no message asks Redis for REST_S, then one message tries.

If Redis takes half a second to fail, only one message a second pays for it. If the message that tries never reports how
it went, because its connection was closed meanwhile, another one tries after REST_S.
"""

REST_S = 1.0


class Gate:
    def __init__(self) -> None:
        self._closed_until: float | None = None

    def may_ask(self, now: float) -> bool:
        """Always while Redis works; after a failure once in REST_S."""
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
