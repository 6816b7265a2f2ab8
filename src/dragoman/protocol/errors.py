"""The one exception of this package: what a peer sent is not what the protocol says."""

from dragoman.protocol.codes import ErrorCode


class ProtocolError(Exception):
    """Carries what the peer is told: a code of the protocol and a sentence for a human."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class BadAudio(ProtocolError):
    """Audio that cannot be what its format says."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_MESSAGE, message)
