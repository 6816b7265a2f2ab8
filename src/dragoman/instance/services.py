"""Builds every service of one instance, and lists its loops.

speech     sessions ─▶ dispatcher ─▶ placer, driver         the path of an utterance
           text jobs ─▶ dispatcher                          the path of a text
           local nodes, fleet view, orphans
routing    handlers, router, inbox reader, reclaimer,       messages between instances
           announcer
upkeep     presence, takeover, renewer, sweeper             the cluster
rooms      in its own file                                  the path of a caption
chat       in its own file                                  the path of a message
"""

import asyncio
import dataclasses
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from dragoman import logs
from dragoman.config import Config
from dragoman.config.secrets import secrets_of
from dragoman.domain.deadlines import SHARE_OF_JOB, DeadlineSettings
from dragoman.domain.history import SAMPLE_MS
from dragoman.domain.limits.sessions import SessionLimits
from dragoman.domain.revocation import RevocationList
from dragoman.domain.segmenter import SegmenterSettings
from dragoman.domain.storm import StormSettings
from dragoman.instance.chat import Chat
from dragoman.instance.chat_settings import SECRETS_POLL_S, SecretRotation
from dragoman.instance.process import is_dead
from dragoman.instance.rooms import RoomLogs, Rooms
from dragoman.protocol.peer import (
    AssignJob,
    Bounced,
    CancelJob,
    ChatKick,
    ChatNotices,
    ChatOwnerCheck,
    ChatPush,
    ChatResend,
    DrainInstance,
    DrainNode,
    EarlyPushes,
    EndSession,
    Evict,
    ForwardedUtterance,
    FromNode,
    FromPreview,
    JobEnded,
    JobMoved,
    SessionMoved,
    ToPreview,
    ToSocket,
)
from dragoman.services.history import History
from dragoman.services.loops import Tasks, every
from dragoman.services.metrics import Metrics
from dragoman.services.operations import POLL_S, AllDeadLetters, Operations, RevocationService
from dragoman.services.report import Listings, Report
from dragoman.services.rooms.room_log import RoomLog
from dragoman.services.routing.inbox_reader import InboxReader, Reclaimer
from dragoman.services.routing.router import INBOX_KINDS, Announcer, Handlers, Router, drop, drop_silently
from dragoman.services.speech.dispatcher import Dispatcher
from dragoman.services.speech.fleet_view import FleetView
from dragoman.services.speech.job_records import JobMetrics, JobRecords
from dragoman.services.speech.local_nodes import LocalNodes
from dragoman.services.speech.node_health import NodeHealth
from dragoman.services.speech.orphans import Orphans
from dragoman.services.speech.placer import Placer, PlacerSettings
from dragoman.services.speech.previews import NodePreviews, Previews
from dragoman.services.speech.remote import SessionResults
from dragoman.services.speech.resumption import Resumption
from dragoman.services.speech.session import SessionSettings
from dragoman.services.speech.sessions import Sessions
from dragoman.services.speech.text_jobs import TextJobs
from dragoman.services.upkeep.presence import InstancePresence, Renewer, Sweeper
from dragoman.services.upkeep.takeover import Takeover
from dragoman.store.console import Audit, Samples
from dragoman.store.dead_letters import InboxDeadLetters
from dragoman.store.inbox import Inboxes, InboxSettings
from dragoman.store.instances import Instances, Owners, Presence
from dragoman.store.jobs import Jobs, Turns
from dragoman.store.keys import Keys
from dragoman.store.nodes import Nodes, Reservations, Storm
from dragoman.store.redis import Redis
from dragoman.store.revocations import Revocations
from dragoman.store.sessions import ResumableSessions


class Stores:
    def __init__(self, config: Config, redis: Redis) -> None:
        phase2, speech = config.scheduler.phase2, config.speech
        self.redis = redis
        keys = self.keys = Keys(phase2.redis.key_prefix)
        self.instances = Instances(redis, keys)
        self.inboxes = Inboxes(
            redis,
            keys,
            InboxSettings(
                phase2.stream_group,
                phase2.stream_maxlen,
                phase2.stream_max_bytes,
                phase2.dlq_maxlen,
                dead_letters=phase2.dlq_enabled,
            ),
        )
        self.letters = InboxDeadLetters(redis, keys, self.inboxes)
        self.owners = Owners(redis, keys, int(phase2.owner_ttl_seconds * 1000))
        self.nodes = Nodes(redis, keys, int(phase2.node_snapshot.presence_ttl_seconds * 1000))
        self.jobs = Jobs(redis, keys)
        self.turns = Turns(redis, keys)
        self.sessions = ResumableSessions(
            redis, keys, owner_ttl_ms=self.owners.ttl_ms, grace_ms=int(speech.resume_grace_s * 1000)
        )
        self.reservations = Reservations(redis, keys, speech.reservation_ttl_ms)
        storm = StormSettings(speech.debounce_window_s, speech.unavailable_ttl_s, first_pause_s=speech.failure_pause_s)
        self.storm = Storm(redis, keys, storm)
        self.audit = Audit(redis, keys)
        self.revocations = Revocations(redis, keys)
        self.samples = Samples(redis, keys)


LAG_INTERVAL_S = 0.25
NODE_HEARTBEAT_S = 15.0
GRACE_INTERVAL_S = 2.0


class Services:
    def __init__(
        self,
        config: Config,
        name: str,
        stores: Stores,
        *,
        describe: Callable[[str, str], Presence],
        on_declared_dead: Callable[[], Awaitable[None]],
        on_drain: Callable[[], None],
        on_switches_changed: Callable[[], None],
        on_wrong_archive: Callable[[], None],
        connect: Callable[[], Awaitable[Redis]],
    ) -> None:
        self.name, self.stores = name, stores
        metrics, tasks = self.metrics, self.tasks = Metrics(), Tasks()
        metrics.registry.register(stores.redis.ops)
        phase2 = config.scheduler.phase2
        self.presence = InstancePresence(
            stores.instances,
            metrics,
            instance=name,
            ttl_s=phase2.instance_presence_ttl_seconds,
            group=phase2.stream_group,
            describe=describe,
            on_return=self._returned,
            on_declared_dead=on_declared_dead,
            is_dead=is_dead,
        )
        self.announcer = Announcer(stores.redis, stores.keys, tasks, name)
        self.revocations = RevocationService(RevocationList(), stores.revocations, self.announcer, tasks)
        snapshots = phase2.node_snapshot
        self.view = FleetView(
            stores.nodes, stores.storm, metrics,
            presence_ttl_s=snapshots.presence_ttl_seconds, shared=snapshots.enabled,
        )  # fmt: skip
        self.announcer.subscribe(self.view.on_announcement)
        self.handlers = Handlers(INBOX_KINDS)
        self.router = Router(name, self.handlers, stores.inboxes, stores.owners, stores.jobs, metrics)
        self.results = SessionResults(self.router, stores.sessions, tasks)
        logs = RoomLogs(config, name, stores.redis, stores.keys, self.router, metrics, tasks)
        self._build_jobs(config, logs.log)
        self.rooms = Rooms(config, name, logs, self.view, self.text_jobs, metrics, tasks)
        self._build_sessions(config)
        self.chat = Chat(
            config, name, stores.redis, stores.keys, stores.instances, stores.inboxes, self.announcer, metrics, tasks,
            self.revocations.copy, self.text_jobs, serves_text=self.view.serves_text,
            owner_ttl_ms=stores.owners.ttl_ms, connect=connect,
            on_switches_changed=on_switches_changed, on_wrong_archive=on_wrong_archive,
        )  # fmt: skip
        self.letters = AllDeadLetters(stores.letters, self.chat.dead_letters)
        self._register_handlers(on_drain)
        self._build_upkeep(config)

    def _build_jobs(self, config: Config, room_log: RoomLog) -> None:
        stores, speech, name = self.stores, config.speech, self.name
        records = JobRecords(name, stores.jobs, self.tasks)
        self.orphans = Orphans(
            name, stores.jobs, records, stores.reservations, self.results, self.router, self.announcer,
            JobMetrics(self.metrics), self.tasks,
            timeout_ms=max(speech.attempt_timeout_ms, int(SHARE_OF_JOB * speech.job_timeout_ms)),
            knows=lambda node: node in self.view.fleet, lost_in_room=room_log.note_lost,
        )  # fmt: skip
        placing = PlacerSettings(
            speech.placement_wait_ms, speech.default_slots, speech.turn_overcommit, speech.job_timeout_ms
        )
        self.placer = Placer(
            name, self.view, stores.jobs, stores.reservations, stores.turns, stores.owners, self.announcer,
            self.metrics, self.tasks, placing,
            incarnation=lambda: self.presence.incarnation,
        )  # fmt: skip
        deadlines = DeadlineSettings(
            speech.job_ack_timeout_ms, speech.attempt_timeout_ms, speech.job_timeout_ms, speech.max_attempts
        )
        self.health = NodeHealth(
            self.view, stores.storm, self.announcer, self.metrics, self.tasks, deadlines,
            failure_run=speech.failure_run,
        )  # fmt: skip
        self.dispatcher = Dispatcher(
            name, self.placer, self.router, records, self.view, self.health, self.orphans,
            self.metrics, self.tasks, deadlines,
            node_grace_ms=speech.node_grace_ms, max_waiting=config.limits.waiting_jobs,
            wait_for_lease=self.presence.wait_for_lease,
        )  # fmt: skip
        self.view.on_lost(self.dispatcher.node_lost)
        self.text_jobs = TextJobs(self.dispatcher)
        self.previews = Previews(self.view, self.router, self.metrics)
        self.view.on_lost(self.previews.node_lost)
        snapshots = config.scheduler.phase2.node_snapshot
        self.local_nodes = LocalNodes(
            name, stores.owners, stores.nodes, self.router, self.announcer, self.metrics, self.tasks,
            silent_after_s=max(snapshots.presence_ttl_seconds, 2 * NODE_HEARTBEAT_S),
            job_s=speech.job_timeout_ms / 1000, shared=snapshots.enabled,
            on_seen=self.view.seen, on_message=self.dispatcher.on_node_message,
        )  # fmt: skip
        self.node_previews = NodePreviews(self.local_nodes, self.router, self.metrics)

    def _build_sessions(self, config: Config) -> None:
        stores, speech = self.stores, config.speech
        self.sessions = Sessions(
            self.name, stores.owners, stores.turns, stores.sessions, self.dispatcher, self.router, self.results,
            self.previews, self.metrics, self.tasks, _session_settings(config), guard=self.presence.guard,
            on_ended=self.rooms.commands.session_ended, on_moved=self.rooms.commands.session_moved,
            rooms=self.rooms.speakers,
        )  # fmt: skip
        self.resumption = Resumption(
            self.sessions, self.results, stores.sessions, stores.jobs, stores.turns, stores.instances,
            self.router, self.metrics, self.tasks, job_timeout_ms=speech.job_timeout_ms,
            session_over=self.rooms.membership.session_over, restore_room=self.rooms.speakers.restore,
            lost_in_room=self.rooms.log.note_lost,
        )  # fmt: skip

    def _build_upkeep(self, config: Config) -> None:
        stores, phase2 = self.stores, config.scheduler.phase2
        self.reader = InboxReader(
            stores.inboxes, self.presence, self.metrics, self.handlers.handle,
            count=phase2.stream_count, block_ms=phase2.stream_block_ms,
        )  # fmt: skip
        self.reclaimer = Reclaimer(
            stores.inboxes, self.presence, self.reader, self.metrics,
            min_idle_ms=phase2.dlq_min_idle_ms, max_deliveries=phase2.dlq_max_deliveries,
            count=phase2.dlq_scan_count,
        )  # fmt: skip
        self.takeover = Takeover(
            self.name, stores.instances, stores.inboxes, stores.owners, stores.nodes, stores.jobs, stores.turns,
            self.announcer, self.metrics,
            lock_ms=int(phase2.instance_presence_ttl_seconds * 1000),
            steady=lambda: self.presence.steady, rehome=self.handlers.rehome, adopt=self.orphans.adopt,
            leave_behind=stores.sessions.grant_grace, session_over=self._session_lost,
        )  # fmt: skip
        self.renewer = Renewer(
            stores.owners, self.name, self.local_nodes.ids, self.sessions.ids, self.local_nodes.named
        )
        self.sweeper = Sweeper(stores.nodes, int(phase2.node_snapshot.remove_stale_after_seconds * 1000))
        self.operations = Operations(self.router, stores.instances, stores.owners, stores.sessions, self.chat.users)
        self.history = History(self.name, self.metrics, stores.samples, stores.instances)
        self.listings = Listings(stores.instances, stores.jobs, stores.sessions, stores.owners, stores.turns)
        self.report = Report(
            self.name, stores.instances, stores.inboxes, self.letters, self.view.fleet, stores.nodes,
            stores.reservations, stores.storm, config.speech.default_slots,
        )  # fmt: skip

    # -- messages from other instances -------------------------------------------------------------

    def _register_handlers(self, on_drain: Callable[[], None]) -> None:
        """Each kind of inbox message, its handler, and where it goes if the instance it was for is dead."""
        register, router = self.handlers.register, self.router
        register(FromNode, self.dispatcher.from_node, rehome=router.rehome_to_driver)
        register(Bounced, self.dispatcher.bounced, rehome=router.rehome_to_driver)
        register(AssignJob, self.local_nodes.assign, rehome=router.rehome_assign)
        register(CancelJob, self.local_nodes.cancel, rehome=router.rehome_cancel)
        register(ToPreview, self.node_previews.on_message, rehome=drop_silently)
        register(FromPreview, self.previews.from_node, rehome=drop_silently)
        register(Evict, self.local_nodes.evict, rehome=drop)
        register(DrainNode, self.local_nodes.drain, rehome=drop)
        register(JobEnded, self.resumption.job_ended, rehome=router.rehome_to_session)
        register(JobMoved, self.resumption.job_moved, rehome=router.rehome_to_session)
        register(ForwardedUtterance, self.sessions.on_forwarded_utterance, rehome=router.rehome_to_session)
        register(SessionMoved, self.sessions.session_moved, rehome=drop)
        register(ToSocket, self.sessions.forwarder.reply, rehome=drop)
        register(EndSession, self.sessions.end_by_operator, rehome=drop)
        register(ChatPush, self.chat.handle, rehome=self.chat.rehome)
        register(ChatNotices, self.chat.handle, rehome=self.chat.rehome)
        register(ChatKick, self.chat.handle, rehome=self.chat.rehome)
        register(ChatOwnerCheck, self.chat.handle, rehome=self.chat.rehome)
        register(ChatResend, self.chat.handle, rehome=self.chat.rehome)
        register(EarlyPushes, self.chat.handle, rehome=self.chat.rehome)
        self.rooms.register(self.handlers)
        register(DrainInstance, lambda _: on_drain(), rehome=drop)

    async def _session_lost(self, session_id: str) -> None:
        """A session that cannot resume ended with its instance."""
        await self.orphans.session_over(session_id)
        await self.rooms.membership.session_over(session_id, 0)

    async def _returned(self) -> None:
        """Redis was unavailable, or the lease expired: write again what this instance owns."""
        await self.stores.inboxes.ensure_group(self.name)
        await self.renewer.run_once()
        await self.local_nodes.write_all()

    # -- loops -----------------------------------------------------------------------------------

    def loops(self, config: Config) -> dict[str, Coroutine[Any, Any, None]]:
        """All loops, by name."""
        phase2 = config.scheduler.phase2
        presence_s = phase2.instance_presence_ttl_seconds / 3
        owner_s, slots_s = phase2.owner_ttl_seconds / 3, config.speech.reservation_ttl_ms / 3000
        refresh_s = phase2.node_snapshot.refresh_interval_ms / 1000
        scan_s = phase2.dlq_scan_interval_ms / 1000
        return {
            "presence": every(presence_s, self.presence.run_once, name="presence"),
            "announcer": self.announcer.run(),
            "reader": every(0, self.reader.run_once, name="reader"),
            "reclaimer": every(scan_s, self.reclaimer.run_once, name="reclaimer"),
            "takeover": every(presence_s, self.takeover.run_once, name="takeover"),
            "orphans": every(slots_s, self.orphans.run_once, name="orphans"),
            "renewer": every(owner_s, self.renewer.run_once, name="renewer"),
            "session-renewal": every(owner_s, self.sessions.renew_all, name="session-renewal"),
            "parked-results": every(owner_s, self.resumption.collect_all, name="parked-results"),
            "grace": every(GRACE_INTERVAL_S, self.resumption.end_overdue, name="grace"),
            "reservations": every(slots_s, self.dispatcher.renew, name="reservations"),
            "fleet-view": every(refresh_s, self.view.run_once, name="fleet-view"),
            "idle-previews": every(1.0, self.node_previews.run_once, name="idle-previews"),
            "silent-nodes": every(1.0, self.local_nodes.close_silent, name="silent-nodes"),
            "sweeper": every(refresh_s * 5, self.sweeper.run_once, name="sweeper"),
            "loop-lag": self._measure_lag(),
            "revocations": every(POLL_S, self.revocations.run_once, name="revocations"),
            "history": every(SAMPLE_MS / 1000, self.history.run_once, name="history"),
            **self._secret_rotation(config),
            **self.rooms.loops(),
            **self.chat.loops(),
        }

    def _secret_rotation(self, config: Config) -> dict[str, Coroutine[Any, Any, None]]:
        """Only secrets in a file can change while the instance runs."""
        if not config.security.secret_file:
            return {}
        rotation = SecretRotation(self.chat.tokens.signing_keys, lambda: secrets_of(config))
        return {"secret-rotation": every(SECRETS_POLL_S, rotation.run_once, name="secret-rotation")}

    async def _measure_lag(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(LAG_INTERVAL_S)
            self.metrics.loop_lag.observe(max(time.monotonic() - before - LAG_INTERVAL_S, 0))
            self.metrics.log_dropped.set(logs.dropped())
            self.metrics.memory_blocks.set(sys.getallocatedblocks())


def _session_settings(config: Config) -> SessionSettings:
    speech = config.speech
    names = (field.name for field in dataclasses.fields(SegmenterSettings))
    segmenter = SegmenterSettings(**{name: getattr(speech, name) for name in names})
    return SessionSettings(
        segmenter, speech.release.ack_timeout_ms, speech.release.span, speech.reorder_ms, speech.close_wait_ms,
        config.limits.open_jobs_per_session, speech.binary_frames, speech.resume_grace_s, speech.detached_session_s,
        speech.placement_wait_ms / 1000, _session_limits(config),
        speech.vad.silence_ms, speech.previews,
    )  # fmt: skip


def _session_limits(config: Config) -> SessionLimits:
    limits = config.limits
    return SessionLimits(
        per_principal=limits.sessions_per_principal,
        per_gateway=limits.sessions_per_gateway,
        per_address=limits.sessions_per_address,
        per_connection=limits.sessions_per_connection,
        instance=limits.sessions,
        detached_share=limits.detached_share,
        utterances_per_s=limits.utterances_per_s,
        gateway_utterances_per_s=limits.gateway_utterances_per_s,
        open_jobs_per_principal=limits.open_jobs_per_principal,
        open_jobs_per_gateway=limits.open_jobs_per_gateway,
    )
