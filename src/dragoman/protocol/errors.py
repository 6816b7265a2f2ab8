"""The exception of this package: a message of a peer breaks the protocol."""

from dragoman.protocol.codes import ErrorCode


class ProtocolError(Exception):
    """The answer to the peer: an error code and a sentence for a person."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class BadAudio(ProtocolError):
    """Audio that does not match its format."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_MESSAGE, message)
