"""What all senders of an instance share: the stores, the switches, and the ids they draw."""

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

import structlog

from dragoman.archive import Archive
from dragoman.domain.chat.allowances import Allowances
from dragoman.domain.chat.gate import Gate
from dragoman.domain.chat.message_ids import MessageIds
from dragoman.domain.chat.words import WordFilter
from dragoman.services.chat.clock import now_ms
from dragoman.services.chat.courier import Courier
from dragoman.services.chat.perf import Perf
from dragoman.services.chat.replicas import Replicas
from dragoman.services.chat.switchboard import Switchboard
from dragoman.services.loops import Tasks
from dragoman.services.metrics import Metrics
from dragoman.store.chat.shards import Shards

log = structlog.get_logger(__name__)


class IdMaker:
    """The ids of this instance, whatever worker number it has at the moment."""

    def __init__(self, clock: Callable[[], int] = now_ms) -> None:
        self._clock = clock
        self._ids: MessageIds | None = None
        self._last = 0

    def use(self, worker: int) -> None:
        self._ids = MessageIds(worker)

    def draw(self, above: int = 0) -> int:
        assert self._ids is not None
        self._last = self._ids.draw(self._clock(), max(above, self._last))
        return self._last

    def rise(self, above: int) -> None:
        """From now on: another instance, whose clock is ahead of ours, has made this one."""
        self._last = max(self._last, above)


class Repeats:
    """Repeated clientMsgIds with another body: counted, and logged at most once a minute for each sender."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = monotonic) -> None:
        self._metrics, self._clock = metrics, clock
        self._warnings = Allowances(per_minute=1)

    def note(self, sender: int, client_msg_id: str, id: int) -> None:
        self._metrics.chat_other_body.inc()
        if self._warnings.take(sender, self._clock()):
            log.warning(
                "A sender repeats a clientMsgId with another body; the first message stands.",
                user=sender, clientMsgId=client_msg_id, serverMsgId=id,
            )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Desk:
    instance: str
    shards: Shards
    archive: Archive
    courier: Courier
    switchboard: Switchboard
    words: WordFilter
    metrics: Metrics
    tasks: Tasks
    gate: Gate
    ids: IdMaker
    accept_timeout_s: float
    replicas: Replicas
    repeats: Repeats
    perf: Perf
