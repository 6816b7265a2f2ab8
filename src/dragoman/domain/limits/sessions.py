"""How many sessions of an instance one client may have, and which one ends when those without a socket take too many.

A session counts from the moment it is opened until nothing of it is left: also while it has no socket (detached), and
while it is closed but can still be resumed. Sessions are counted by owner and by address. Anonymous clients share one
owner, so only their address counts. A gateway acts for many clients, often from one address: it has a limit of its
own instead. Detached sessions may fill the instance; beyond their share the oldest is evicted for another client.

Work and open jobs are counted for all sessions of a client together, too: otherwise it would get more of both with
every session and connection that it opens.
"""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import Final

from dragoman.domain.limits.rates import WorkPerKey
from dragoman.domain.rooms import RoomClaim


class SessionLimit(StrEnum):
    """The limit that is reached; a label of the metric."""

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
    utterances_per_s: int = 50
    gateway_utterances_per_s: int = 500
    open_jobs_per_principal: int = 512
    open_jobs_per_gateway: int = 5000

    def open_jobs_of(self, holder: "Holder") -> int:
        """The limit of open jobs of all its sessions together."""
        if not holder.account:
            return 0
        return self.open_jobs_per_gateway if holder.gateway else self.open_jobs_per_principal


class Headroom(StrEnum):
    """For one more job of a session."""

    ENOUGH = auto()
    LITTLE = auto()  # its client is asked to pause
    NONE = auto()  # the utterance fails


def headroom_for_job(open_jobs: int, limit: int) -> Headroom:
    """With this many open jobs, including the new one; a `limit` of 0 is any number. A client that was asked to pause
    may have more in flight, or ignore it: so an utterance fails only at twice the limit."""
    if limit == 0 or open_jobs <= limit:
        return Headroom.ENOUGH
    return Headroom.LITTLE if open_jobs <= 2 * limit else Headroom.NONE


@dataclass(frozen=True, slots=True)
class Holder:
    """Whose session it is."""

    owner: str
    address: str = ""  # "" is not counted
    anonymous: bool = False
    gateway: bool = False  # its sessions may outlive their sockets
    room_claim: RoomClaim | None = None  # of a token for one room

    @property
    def account(self) -> str:
        """Under which its work and its jobs are counted: the principal, or the address of clients without a token. ""
        is not counted."""
        return self.address if self.anonymous else self.owner

    @property
    def job_account(self) -> str:
        """Under which its jobs are counted, and take turns. The guests of a room are counted together: with the link of
        the room, anybody can be many of them. No tenant can be named `~room`."""
        return f"~room/{self.room_claim.room}" if self.room_claim is not None else self.account


UTTERANCE: Final = 1.0  # the work of one; opening or resuming a session is as much
TEXT: Final = 1 / 2  # the work of one text job
MESSAGE: Final = 1 / 32  # the work of any message
WORK_AT_ONCE: Final = 16  # takes an instance about 15 ms
MAX_WAIT_S: Final = 5.0


class WorkQuota:
    """The work that one client makes for an instance, through all its connections and sessions.

    A client that makes too much is slowed down, not refused: its next message is handled later. So others are served
    in between, and a client that sends what it has collected loses nothing.
    """

    def __init__(self, limits: SessionLimits) -> None:
        self._principals, self._gateways = [
            WorkPerKey(per_s, WORK_AT_ONCE, MAX_WAIT_S) if per_s else None
            for per_s in (limits.utterances_per_s, limits.gateway_utterances_per_s)
        ]

    def done(self, holder: Holder, work: float, now: float) -> float:
        """Count work; returns the seconds until the next message of the holder may be handled. With more than
        MAX_WAIT_S it has too many connections that send."""
        quota, account = self._gateways if holder.gateway else self._principals, holder.account
        return quota.done(account, work, now) if quota is not None and account else 0.0


@dataclass(eq=False, slots=True)
class SessionGrant:
    """One session, as it counts."""

    session: str
    holder: Holder
    counted: bool = True
    closed: bool = False


class SessionQuota:
    __slots__ = ("_counts", "_detached", "_limits", "_max", "_open")

    def __init__(self, limits: SessionLimits) -> None:
        self._limits, self._open = limits, 0
        self._max = {
            SessionLimit.PRINCIPAL: limits.per_principal,
            SessionLimit.GATEWAY: limits.per_gateway,
            SessionLimit.ADDRESS: limits.per_address,
        }
        self._counts: Counter[tuple[SessionLimit, str]] = Counter()
        self._detached: dict[SessionGrant, None] = {}  # the oldest first

    def __len__(self) -> int:
        """Open sessions of the instance."""
        return self._open

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
            if 0 < self._max[limit] <= self._counts[limit, name]:
                return limit
        return SessionLimit.INSTANCE if self._is_full and self.evictable() is None else None

    def evictable(self) -> SessionGrant | None:
        """The oldest detached session, if the instance is full and detached sessions exceed their share of it."""
        if not self._is_full or len(self._detached) <= self._limits.detached_share * self._limits.instance:
            return None
        return next(iter(self._detached))

    def admit(self, session: str, holder: Holder) -> SessionGrant:
        """Count one more session; the limits are checked by `full`."""
        self._open += 1
        self._counts.update(_counted(holder))
        return SessionGrant(session, holder)

    def detach(self, grant: SessionGrant) -> None:
        """Its socket is gone."""
        if grant.counted and not grant.closed:
            self._detached[grant] = None

    def attach(self, grant: SessionGrant) -> None:
        self._detached.pop(grant, None)

    def close(self, grant: SessionGrant) -> None:
        """The session is closed on this instance, but still counts against its holder until it is released."""
        if grant.counted and not grant.closed:
            grant.closed = True
            self._open -= 1
            self._detached.pop(grant, None)

    def release(self, grant: SessionGrant) -> None:
        if not grant.counted:
            return
        self.close(grant)
        grant.counted = False
        for key in _counted(grant.holder):
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]

    @property
    def _is_full(self) -> bool:
        return self._open >= self._limits.instance


def _counted(holder: Holder) -> list[tuple[SessionLimit, str]]:
    """By what the sessions of a holder are counted."""
    if not holder.anonymous and holder.gateway:
        return [(SessionLimit.GATEWAY, holder.owner)]
    owner = [] if holder.anonymous else [(SessionLimit.PRINCIPAL, holder.owner)]
    return [*owner, (SessionLimit.ADDRESS, holder.address)] if holder.address else owner
