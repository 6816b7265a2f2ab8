"""What one instance knows of the nodes from its own jobs: how many they failed in a row, and how fast they are.

An instance judges a node by its own jobs, and shares only the verdict (see `storm`). Bounded: MAX_NODES nodes, the
least recently used is forgotten; RECENT speeds of each.
"""

from collections import OrderedDict, deque
from math import ceil

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
