"""The storm guard: how MODEL_NOT_AVAILABLE answers and failures keep jobs away from a node.

A report marks one service (`<service_id>@<version>`) of the node as cooling down for `unavailable_ttl_s`. Reports of
the same service within `debounce_window_s` of the mark count once. A node that sends more than `rate_limit` reports
in `rate_window_s`, debounced ones included, cools down whole: the reports themselves are load.

A node that failed several jobs in a row is *paused*, whatever the reasons. Each further pause is twice as long, from
`first_pause_s` to `unavailable_ttl_s`. After a pause the node is on probation: it gets one job at a time until one
succeeds, which clears its pauses, or fails, which begins the next pause. `unavailable_ttl_s` after the end of a pause
its length is forgotten.

One object a node. One Redis key holds the same fields, one script does the same step, and a model test compares the
two. Times are those of Redis, in ms.

What leads to a pause is the track record of one instance: how many of its own jobs a node failed in a row, and how fast
the node is. Instances share only the verdict. A record is bounded: MAX_NODES nodes, the least recently used is
forgotten; RECENT speeds of each.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil

MAX_DOUBLINGS = 16


class StormVerdict(StrEnum):
    MARKED = "MARKED"
    DEBOUNCED = "DEBOUNCED"
    RATE_LIMITED = "RATE_LIMITED"


@dataclass(frozen=True, slots=True)
class StormSettings:
    debounce_window_s: float = 5
    unavailable_ttl_s: float = 60
    rate_limit: int = 30
    rate_window_s: int = 10
    first_pause_s: float = 2


@dataclass(slots=True)
class StormGuard:
    settings: StormSettings = field(default_factory=StormSettings)
    marks: dict[str, int] = field(default_factory=dict)  # service -> ms of the mark
    recent: deque[int] = field(
        default_factory=deque
    )  # ms of the reports in the rate window, the last rate_limit of them
    whole_until_ms: int = 0
    pauses: int = 0  # in a row
    paused_until_ms: int = 0

    def report(self, service: str, now_ms: int) -> StormVerdict:
        self._forget(now_ms)
        self.recent.append(now_ms)
        if len(self.recent) > self.settings.rate_limit:
            self.recent.popleft()
            self.whole_until_ms = now_ms + int(self.settings.unavailable_ttl_s * 1000)
            return StormVerdict.RATE_LIMITED
        marked_ms = self.marks.get(service)
        if marked_ms is not None and now_ms - marked_ms < self.settings.debounce_window_s * 1000:
            return StormVerdict.DEBOUNCED
        self.marks[service] = now_ms
        return StormVerdict.MARKED

    def cooling(self, service: str, now_ms: int) -> bool:
        return now_ms < self.cooling_until_ms(service)

    def cooling_until_ms(self, service: str) -> int:
        """When the service may be used again; a past time if it is not cooling down."""
        marked_ms = self.marks.get(service)
        if marked_ms is None:
            return self.whole_until_ms
        return max(self.whole_until_ms, marked_ms + int(self.settings.unavailable_ttl_s * 1000))

    def pause(self, now_ms: int) -> int:
        """The node failed too often: for how many ms it is paused; 0 if it is paused already."""
        if now_ms < self.paused_until_ms:
            return 0
        ttl_ms = int(self.settings.unavailable_ttl_s * 1000)
        if now_ms - self.paused_until_ms >= ttl_ms:
            self.pauses = 0
        pause_ms = min(int(self.settings.first_pause_s * 1000) << min(self.pauses, MAX_DOUBLINGS), ttl_ms)
        self.pauses += 1
        self.paused_until_ms = now_ms + pause_ms
        return pause_ms

    def recovered(self) -> None:
        """The node did a job."""
        self.pauses = self.paused_until_ms = 0

    def _forget(self, now_ms: int) -> None:
        # Bounded whatever a node sends: past rate_limit reports a window nothing more is marked.
        while self.recent and now_ms - self.recent[0] >= self.settings.rate_window_s * 1000:
            self.recent.popleft()
        ttl_ms = self.settings.unavailable_ttl_s * 1000
        for service in [s for s, marked_ms in self.marks.items() if now_ms - marked_ms >= ttl_ms]:
            del self.marks[service]


# -- the track record of one instance --------------------------------------------------------------


MAX_NODES = 4096
RECENT = 32


class _Seen:
    __slots__ = ("failures", "lost_epoch", "speeds")

    def __init__(self) -> None:
        self.failures = self.lost_epoch = 0
        self.speeds: deque[float] = deque(maxlen=RECENT)


class TrackRecord:
    def __init__(self) -> None:
        self._nodes: OrderedDict[str, _Seen] = OrderedDict()

    def __len__(self) -> int:
        return len(self._nodes)

    def failed(self, node_id: str) -> int:
        """The node failed a job: the length of its run of failures."""
        seen = self._of(node_id)
        seen.failures += 1
        return seen.failures

    def is_new_loss(self, node_id: str, epoch: int) -> bool:
        """Whether this loss of the node's connection is new: losses are announced repeatedly."""
        seen = self._of(node_id)
        newer, seen.lost_epoch = epoch > seen.lost_epoch, max(epoch, seen.lost_epoch)
        return newer

    def succeeded(self, node_id: str) -> None:
        self._of(node_id).failures = 0

    def add_work_time(self, node_id: str, work_s: float, audio_s: float) -> None:
        """A job was on the node for `work_s`, whether it ended by itself or by its deadline."""
        if audio_s > 0:
            self._of(node_id).speeds.append(work_s / audio_s)

    def slowness(self, node_id: str) -> float | None:
        """The 90th percentile of the node's recent work time per second of audio; None if nothing is known."""
        seen = self._nodes.get(node_id)
        if seen is None or not seen.speeds:
            return None
        return sorted(seen.speeds)[ceil(0.9 * len(seen.speeds)) - 1]

    def _of(self, node_id: str) -> _Seen:
        seen = self._nodes.get(node_id)
        if seen is None:
            seen = self._nodes[node_id] = _Seen()
            if len(self._nodes) > MAX_NODES:
                self._nodes.popitem(last=False)
        self._nodes.move_to_end(node_id)
        return seen
