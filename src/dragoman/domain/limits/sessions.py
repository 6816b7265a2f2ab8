"""How many sessions of an instance one client may have, and which one ends when those without a socket take too many.

A session has a place from the moment it is opened until nothing of it is left, also while its socket is gone (detached)
and while a closed one can still be resumed (left). Places are counted by owner and by address. Anonymous clients share
one owner, so only their address counts. A gateway speaks for many clients, often from one address: it has a limit of
its own instead. Detached sessions may fill the instance; beyond their share the oldest ends when another client needs
a place.
"""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum, auto


class SessionLimit(StrEnum):
    """What is full; the word is a label of the metric."""

    PRINCIPAL = auto()
    GATEWAY = auto()
    ADDRESS = auto()
    INSTANCE = auto()


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """0 is any number, but not for `instance` and `per_connection`."""

    per_connection: int = 64
    per_principal: int = 1000
    per_gateway: int = 10_000
    per_address: int = 2000
    instance: int = 40_000
    detached_share: float = 0.5  # of `instance`


class Room(StrEnum):
    """For one more job of a session."""

    ENOUGH = auto()
    LITTLE = auto()  # its client is asked to pause
    NONE = auto()  # the utterance fails


def room_for_job(open_jobs: int, limit: int) -> Room:
    """Of a session with so many open jobs, the new one among them; a `limit` of 0 is any number. A client that was
    asked to pause may have more on its way, or not understand: so an utterance fails only at twice the limit."""
    if limit == 0 or open_jobs <= limit:
        return Room.ENOUGH
    return Room.LITTLE if open_jobs <= 2 * limit else Room.NONE


@dataclass(frozen=True, slots=True)
class Holder:
    """Whose session it is."""

    owner: str
    address: str = ""  # "" is not counted
    anonymous: bool = False
    gateway: bool = False  # its sessions may outlive their sockets


@dataclass(eq=False, slots=True)
class SessionPlace:
    """Of one session."""

    session: str
    holder: Holder
    held: bool = True
    left: bool = False


class SessionPlaces:
    __slots__ = ("_counts", "_detached", "_here", "_limits", "_most")

    def __init__(self, limits: SessionLimits) -> None:
        self._limits, self._here = limits, 0
        self._most = {
            SessionLimit.PRINCIPAL: limits.per_principal,
            SessionLimit.GATEWAY: limits.per_gateway,
            SessionLimit.ADDRESS: limits.per_address,
        }
        self._counts: Counter[tuple[SessionLimit, str]] = Counter()
        self._detached: dict[SessionPlace, None] = {}  # the oldest first

    def __len__(self) -> int:
        """Sessions of the instance, without those that were left."""
        return self._here

    @property
    def detached(self) -> int:
        return len(self._detached)

    @property
    def holders(self) -> int:
        """Owners and addresses that are remembered."""
        return len(self._counts)

    def full(self, holder: Holder) -> SessionLimit | None:
        """What keeps this holder from one more session."""
        for limit, name in _counted(holder):
            if 0 < self._most[limit] <= self._counts[limit, name]:
                return limit
        return SessionLimit.INSTANCE if self._is_full and self.surplus() is None else None

    def surplus(self) -> SessionPlace | None:
        """The detached session that ends so that another one has room: the oldest, if the instance is full and they
        take more than their share of it."""
        if not self._is_full or len(self._detached) <= self._limits.detached_share * self._limits.instance:
            return None
        return next(iter(self._detached))

    def take(self, session: str, holder: Holder) -> SessionPlace:
        """Without asking: see `full`."""
        self._here += 1
        self._counts.update(_counted(holder))
        return SessionPlace(session, holder)

    def detach(self, place: SessionPlace) -> None:
        """Its socket is gone."""
        if place.held and not place.left:
            self._detached[place] = None

    def attach(self, place: SessionPlace) -> None:
        self._detached.pop(place, None)

    def leave(self, place: SessionPlace) -> None:
        """The session is over here; what is left of it in Redis still counts against its holder."""
        if place.held and not place.left:
            place.left = True
            self._here -= 1
            self._detached.pop(place, None)

    def release(self, place: SessionPlace) -> None:
        if not place.held:
            return
        self.leave(place)
        place.held = False
        for key in _counted(place.holder):
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]

    @property
    def _is_full(self) -> bool:
        return self._here >= self._limits.instance


def _counted(holder: Holder) -> list[tuple[SessionLimit, str]]:
    """By what the sessions of a holder are counted."""
    if not holder.anonymous and holder.gateway:
        return [(SessionLimit.GATEWAY, holder.owner)]
    owner = [] if holder.anonymous else [(SessionLimit.PRINCIPAL, holder.owner)]
    return [*owner, (SessionLimit.ADDRESS, holder.address)] if holder.address else owner
