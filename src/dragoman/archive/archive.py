"""What every archive does, whatever database it has.

- A method that returned has committed. One that raised ArchiveAway may have: every write may be repeated.
- Losing the database is an operating state: calls raise ArchiveAway while it is away, within a bounded time, and the
  first call after it came back works. It need not be opened again.
- Several processes use one database at once. Two writers of one conversation meet on its row.

Retries, and what becomes of a message that cannot be written, are left to the caller.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from dragoman.archive.types import (
    Applied,
    Conversation,
    MemberState,
    Migration,
    NewMessage,
    Receipt,
    SaveOutcome,
    Stored,
    User,
)


class Archive(ABC):
    @abstractmethod
    async def open(self) -> None:
        """Connect and bring the tables up to date.

        ArchiveAway leaves the archive usable: the next call tries again. WrongSchema does not pass by waiting.
        """

    @abstractmethod
    async def close(self) -> None:
        """Finish what was asked and close the database."""

    @abstractmethod
    async def identity(self) -> str:
        """The id of the database, created with it and the same for all its users."""

    @abstractmethod
    async def save(
        self,
        rows: Sequence[NewMessage],
        *,
        shard: int | None = None,
        fence: int | None = None,
        on_begin: Callable[[], None] | None = None,
    ) -> list[SaveOutcome]:
        """Write messages in the given order, in one transaction; one outcome a row, in the same order.

        A row that is there already, or that stands earlier in `rows`, is not written again: EXISTS or MISMATCH.
        With `shard` and `fence` nothing is written if the shard was ever written with a higher fence: Fenced.
        BadRow: one of them can never be written, and none was.
        `on_begin` is called, perhaps by another thread and more than once, when the rows have the thread or connection
        that writes them.
        """

    @abstractmethod
    async def fence(self, shard: int) -> int:
        """The highest fence that ever wrote this shard; 0 if none did."""

    @abstractmethod
    async def find(self, from_user: int, client_msg_id: str) -> Stored | None: ...

    @abstractmethod
    async def messages(self, ids: Sequence[int]) -> dict[int, Stored]:
        """Those of `ids` that are there."""

    @abstractmethod
    async def receipts(self, given: Sequence[Receipt]) -> list[Applied]:
        """Apply receipts in their order, in one transaction; one answer a receipt, in the same order.

        Only the addressee raises a message. READ also raises every earlier message of the same conversation to the
        same reader that is DELIVERED. The cursors of a member follow: `delivered` stands before the lowest message
        to it that is not delivered (at the last one if there is none), `read` likewise. They never go back.
        """

    @abstractmethod
    async def undelivered(self, user: int, after: int = 0, limit: int = 100) -> list[Stored]:
        """What is SAVED and not more, sent to `user`, with ids above `after`, lowest id first."""

    @abstractmethod
    async def undelivered_users(self, users: Sequence[int], saved_before_ms: int) -> set[int]:
        """Which of these have something undelivered that was saved before then. Made for thousands of users."""

    @abstractmethod
    async def history(
        self, me: int, peer: int, *, limit: int, below_seq: int | None = None, below_id: int | None = None
    ) -> list[Stored]:
        """Messages between two users, newest first, strictly below the message with that seq or id."""

    @abstractmethod
    async def conversations(self, me: int, *, limit: int, before: tuple[int, int] | None = None) -> list[Conversation]:
        """By last change, newest first; `before` is (updated_ms, id) of the last one already seen."""

    @abstractmethod
    async def member_state(self, me: int, peer: int) -> MemberState | None: ...

    @abstractmethod
    async def user_by_name(self, name: str) -> User | None: ...

    @abstractmethod
    async def create_user(self, name: str, password_hash: str) -> User:
        """The user of that name. Of two concurrent calls one creates it, and both return its row."""

    @abstractmethod
    async def set_password(self, user: int, password_hash: str) -> bool:
        """False: there is no such user."""

    @abstractmethod
    async def remove_user(self, user: int) -> bool:
        """Free the name and forget the password; False: there is no such user.

        The row stays under a name that nobody can log in with, so that its id, and with it the user's messages, never
        belongs to another user.
        """

    @abstractmethod
    async def migrate(self) -> list[str]:
        """Bring the tables up to date; the names of the migrations that were applied now."""

    @abstractmethod
    async def migrations(self) -> list[Migration]:
        """What we know, in order, and when the database got it. Works without `open` and changes nothing."""
