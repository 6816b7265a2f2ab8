"""What can go wrong between us and Redis, as one tree.

The difference that matters to a caller is whether the command may have happened:

    StoreError
    ├── RedisAway        it did not: not connected, or the server said it cannot work now
    ├── UnknownOutcome   it may have: sent, and the connection was lost before the reply
    └── Refused          it did not: the server answered with an error of its own
"""


class StoreError(Exception):
    """Redis did not do, or may not have done, what was asked."""


class RedisAway(StoreError):
    """Not executed: there is no usable Redis at the moment. Trying again later is right."""


class UnknownOutcome(StoreError):
    """Sent, but the connection was lost before the reply. Only an idempotent call may be repeated."""


class Refused(StoreError):
    """The server answered with an error."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.word = message.split(" ", 1)[0]
