"""Messages for the tests of the archive."""

from itertools import count

from dragoman.archive import NewMessage, SaveOutcome, Stored

_ids = count(1_700_000_000_000 << 22)
CREATED_MS = 1_700_000_000_000


def letter(
    sender: int, receiver: int, body: str = "hello", *, client: str | None = None, number: int | None = None
) -> NewMessage:
    """A message with an id above all earlier ones and a clientMsgId of its own, unless they are given."""
    number = next(_ids) if number is None else number
    return NewMessage(number, client or f"c-{number}", sender, receiver, "TEXT", body, CREATED_MS)


def verdicts(outcomes: list[SaveOutcome]) -> list[str]:
    return [outcome.verdict.value for outcome in outcomes]


def ids(messages: list[Stored]) -> list[int]:
    return [message.id for message in messages]
