"""Tokens: the keys that sign them, which of them and which principals are revoked, and the names for that.

A token has the name `token:<jti>`; one without a usable `jti` has that of a digest. A principal is named by its class,
tenant and subject (`client:default/ann`, `node:default/gpu-1`, `operator:default/olga`), a chat user by its id
(`user:42`). A token is refused if its own name or that of its principal is on the list.

Every instance has a copy of the list. The version counts the changes of the list that all instances share: a copy that
misses one is read anew.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

MAX_JTI: Final = 64
TOKEN: Final = "token:"
CLIENT: Final = "client:"
USER: Final = "user:"
CHAT_OWNER: Final = "~chat/"  # before the id of a chat user, where a client has its tenant


@dataclass(frozen=True, slots=True, order=True)
class Revocation:
    at_ms: int
    by: str = ""  # the operator
    until_ms: int = 0  # 0: until an operator allows it again


def token_name(token: str, jti: object = None) -> str:
    """The digest covers what is signed. It leaves out the signature, which can be written in several ways."""
    if isinstance(jti, str) and is_jti(jti):
        return TOKEN + jti
    return f"{TOKEN}sha256-{sha256(token.rpartition('.')[0].encode()).hexdigest()}"


def is_jti(text: str) -> bool:
    return 0 < len(text) <= MAX_JTI and text.isascii() and text.isprintable() and " " not in text


def user_name(user: int | str) -> str:
    return f"{USER}{user}"


class RevocationList:
    __slots__ = ("_entries", "version")

    def __init__(self) -> None:
        self.version = 0
        self._entries: dict[str, Revocation] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def is_revoked(self, *names: str, now: float) -> bool:
        """`now`: wall-clock seconds."""
        if not self._entries:
            return False
        found = [entry for name in names if (entry := self._entries.get(name)) is not None]
        return any(not entry.until_ms or now * 1000 < entry.until_ms for entry in found)

    def entries(self, now: float) -> list[tuple[str, Revocation]]:
        """Those in force, by name."""
        return sorted((name, entry) for name, entry in self._entries.items() if self.is_revoked(name, now=now))

    def owners(self) -> set[str]:
        """The owners of sessions that are revoked: see `Principal.owner`."""
        clients = {name.removeprefix(CLIENT) for name in self._entries if name.startswith(CLIENT)}
        return clients | {CHAT_OWNER + name.removeprefix(USER) for name in self._entries if name.startswith(USER)}

    def change(self, version: int, name: str, entry: Revocation | None) -> bool:
        """The change that made the shared list this `version`; None allows the name. False: changes before are missing.

        A change that the copy has already is no change.
        """
        if version <= self.version:
            return True
        if version > self.version + 1:
            return False
        self.version = version
        if entry is not None:
            self._entries[name] = entry
        else:
            self._entries.pop(name, None)
        return True

    def replace(self, version: int, entries: Iterable[tuple[str, Revocation]]) -> None:
        self.version, self._entries = version, dict(entries)


# -- signing keys ----------------------------------------------------------------------------------
#
# The secrets of tokens: the first one signs, all of them are accepted.
#
# They can be changed while they are in use: every holder of the object uses the new secrets from the next token on. An
# empty object means that no token is needed.


class SigningKeys:
    __slots__ = ("_secrets",)

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = tuple(secret for secret in secrets if secret)

    def __iter__(self) -> Iterator[str]:
        return iter(self._secrets)

    def __len__(self) -> int:
        return len(self._secrets)

    @property
    def signing(self) -> str:
        return self._secrets[0]

    def change(self, secrets: Iterable[str]) -> bool:
        """Replace the secrets; False if they are the same, in the same order, or if there are none."""
        fresh = tuple(secret for secret in secrets if secret)
        if not fresh or fresh == self._secrets:
            return False
        self._secrets = fresh
        return True

    def names(self) -> list[str]:
        """A short digest of each secret, for the log."""
        return [name_of(secret) for secret in self._secrets]


def name_of(secret: str) -> str:
    return sha256(b"dragoman secret " + secret.encode()).hexdigest()[:8]
