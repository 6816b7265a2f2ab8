"""What this instance knows about the nodes from its own jobs, and what it shares with other instances.

A node that lacks a model cools down for that service, one that fails several jobs in a row is paused, and how fast a
node works decides how long its next attempt may take. Cool-downs and pauses count for every instance: the storm guard
in Redis decides on them, and an announcement spreads them.
"""

from time import monotonic

import structlog

from dragoman.domain.deadlines import DeadlineSettings, attempt_limit_ms
from dragoman.domain.fleet import WHOLE_NODE
from dragoman.domain.storm import StormVerdict, TrackRecord
from dragoman.protocol.codec import unavailable_model
from dragoman.protocol.node import JobError
from dragoman.protocol.peer import CoolingDown
from dragoman.services.loops import Tasks
from dragoman.services.metrics import Metrics
from dragoman.services.routing.router import Announcer
from dragoman.services.speech.fleet_view import FleetView
from dragoman.services.speech.job_request import JobRequest
from dragoman.store.errors import StoreError
from dragoman.store.nodes import Storm

log = structlog.get_logger(__name__)


class NodeHealth:
    def __init__(
        self,
        view: FleetView,
        storm: Storm,
        announcer: Announcer,
        metrics: Metrics,
        tasks: Tasks,
        deadlines: DeadlineSettings,
        *,
        failure_run: int,
    ) -> None:
        self.track_record = TrackRecord()
        self._view, self._storm, self._announcer, self._metrics, self._tasks = view, storm, announcer, metrics, tasks
        self._deadlines, self._failure_run = deadlines, failure_run

    def attempt_limit_ms(self, node_id: str, request: JobRequest) -> int:
        """How long an attempt on this node may take."""
        slowness = self.track_record.slowness(node_id)
        return attempt_limit_ms(self._deadlines, request.audio_s if slowness is not None else 0.0, slowness)

    def took(self, node_id: str, work_s: float | None, request: JobRequest) -> None:
        """A job was on the node for `work_s`; None if that says nothing about its speed."""
        if work_s is not None:
            self.track_record.add_work_time(node_id, work_s, request.audio_s)

    async def model_missing(self, node_id: str, error: JobError) -> None:
        """A node sent MODEL_NOT_AVAILABLE: it cools down for that service, or whole if it keeps sending that."""
        details = unavailable_model(error)
        service = f"{details.service_id}@{details.service_version or ''}" if details is not None else "unknown"
        try:
            verdict = await self._storm.report(node_id, service)
        except StoreError as error:
            log.warning("missing model not reported: no Redis", node=node_id, error=str(error), limited=True)
            return
        self._metrics.storm.labels(verdict).inc()
        if verdict is StormVerdict.DEBOUNCED:
            return
        what = WHOLE_NODE
        if verdict is StormVerdict.MARKED:
            what = self._view.type_of(node_id, details.service_id) if details is not None else service
        for_ms = int(self._storm.settings.unavailable_ttl_s * 1000)
        self._announcer.announce(CoolingDown(node_id, what, for_ms))

    def succeeded(self, node_id: str) -> None:
        """A node did a job: its run of failures is over, for every instance."""
        self.track_record.succeeded(node_id)
        if self._view.fleet.has_failed(node_id):
            self._tasks.spawn(self._recovered(node_id), "node-recovered")

    def failed(self, node_id: str) -> None:
        """A node failed a job. After a run of failures, or on probation, it is paused for every instance."""
        run = self.track_record.failed(node_id)
        if self._failure_run and (run >= self._failure_run or self._view.fleet.on_probation(node_id, monotonic())):
            self._tasks.spawn(self._pause(node_id, run), "node-paused")

    def lost(self, node_id: str, epoch: int) -> None:
        """A node with jobs of this instance is lost. That counts as one failure, however many jobs it had."""
        if self.track_record.is_new_loss(node_id, epoch):
            self.failed(node_id)

    async def _pause(self, node_id: str, run: int) -> None:
        try:
            for_ms = await self._storm.pause(node_id)
        except StoreError as error:
            log.warning("failing node not paused: Redis is unavailable", node=node_id, error=str(error))
            return
        if for_ms:
            self._metrics.pauses.inc()
            log.warning("node paused after a run of failures", node=node_id, failures=run, pause_s=for_ms / 1000)
            self._announcer.announce(CoolingDown(node_id, WHOLE_NODE, for_ms, failing=True))

    async def _recovered(self, node_id: str) -> None:
        try:
            await self._storm.recovered(node_id)
        except StoreError as error:
            log.warning("probation of a node not ended: Redis is unavailable", node=node_id, error=str(error))
            return
        log.info("node works again", node=node_id)
        self._announcer.announce(CoolingDown(node_id, WHOLE_NODE, 0, failing=True))
