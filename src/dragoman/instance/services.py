"""Every service of one instance, put together, and the list of what runs.

speech     sessions ─▶ dispatcher ─▶ placer, driver         the way of a sentence
           local nodes, fleet view, router, orphans
upkeep     presence, reader, reclaimer, undertaker,         the way of the cluster
           renewer, sweeper, announcer
chat       in its own file                                  the way of a message
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
from dragoman.domain.segmenter import SegmenterSettings
from dragoman.instance.chat import Chat
from dragoman.instance.locksmith import LOOK_S, Locksmith
from dragoman.instance.same_host import is_dead
from dragoman.instance.stores import Stores
from dragoman.protocol.peer import (
    Assign,
    Bounced,
    CancelJob,
    ChatCatchUp,
    ChatKick,
    ChatPush,
    ChatTell,
    DrainInstance,
    DrainNode,
    EndSession,
    Evict,
    FromNode,
    InboxMessage,
    JobEnded,
    JobMoved,
    SessionMoved,
    ToSocket,
    UtteranceFor,
)
from dragoman.services.history import History
from dragoman.services.letter_boxes import LetterBoxes
from dragoman.services.loops import Tasks, every
from dragoman.services.metrics import Metrics
from dragoman.services.operations import Operations
from dragoman.services.register import Register
from dragoman.services.report import Report
from dragoman.services.speech.dispatcher import Dispatcher
from dragoman.services.speech.expatriate import Mail
from dragoman.services.speech.fleet_view import FleetView
from dragoman.services.speech.local_nodes import LocalNodes
from dragoman.services.speech.orphans import Orphans
from dragoman.services.speech.placer import Placer, PlacerSettings
from dragoman.services.speech.resumption import Resumption
from dragoman.services.speech.router import Router
from dragoman.services.speech.session import SessionSettings
from dragoman.services.speech.sessions import Sessions, SessionsSettings
from dragoman.services.upkeep.announcer import Announcer
from dragoman.services.upkeep.presence import PresenceKeeper
from dragoman.services.upkeep.reader import Reader
from dragoman.services.upkeep.reclaimer import Reclaimer
from dragoman.services.upkeep.renewer import Renewer
from dragoman.services.upkeep.sweeper import Sweeper
from dragoman.services.upkeep.undertaker import Undertaker
from dragoman.store.instances import Presence
from dragoman.store.redis import Redis

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
        on_buried: Callable[[], Awaitable[None]],
        connect: Callable[[], Awaitable[Redis]],
    ) -> None:
        self.name, self.stores = name, stores
        metrics, tasks = self.metrics, self.tasks = Metrics(), Tasks()
        metrics.registry.register(stores.redis.ops)
        phase2 = config.scheduler.phase2
        self.presence = PresenceKeeper(
            stores.instances,
            metrics,
            instance=name,
            ttl_s=phase2.instance_presence_ttl_seconds,
            group=phase2.stream_group,
            describe=describe,
            on_return=self._returned,
            on_buried=on_buried,
            is_dead=is_dead,
        )
        self.announcer = Announcer(stores.redis, stores.keys, tasks, name)
        snapshots = phase2.node_snapshot
        self.view = FleetView(
            stores.nodes, metrics, presence_ttl_s=snapshots.presence_ttl_seconds, shared=snapshots.enabled
        )
        self.announcer.subscribe(self.view.hear)
        self.router = Router(name, stores.inboxes, stores.owners, stores.jobs, metrics)
        self.router.deliver_here = self.handle
        self.mail = Mail(self.router, stores.sessions, tasks)
        self._build_jobs(config)
        self._build_sessions(config)
        self.chat = Chat(
            config, name, stores.redis, stores.keys, stores.instances, stores.inboxes, self.announcer, metrics, tasks,
            owner_ttl_ms=stores.owners.ttl_ms, connect=connect,
        )  # fmt: skip
        self.letters = LetterBoxes(stores.letters, self.chat.letters)
        self.router.rehome_chat = self.chat.rehome
        self._build_upkeep(config)

    def _build_jobs(self, config: Config) -> None:
        stores, speech, name = self.stores, config.speech, self.name
        self.orphans = Orphans(
            name, stores.jobs, stores.reservations, self.mail, self.router, self.metrics, self.tasks,
            patience_ms=max(speech.attempt_timeout_ms, int(SHARE_OF_JOB * speech.job_timeout_ms)),
            knows=lambda node: node in self.view.fleet,
        )  # fmt: skip
        placing = PlacerSettings(
            speech.placement_wait_ms, speech.default_slots, speech.turn_overcommit, speech.job_timeout_ms
        )
        self.placer = Placer(
            name, self.view, stores.jobs, stores.reservations, stores.turns, self.metrics, placing,
            incarnation=lambda: self.presence.incarnation,
        )  # fmt: skip
        deadlines = DeadlineSettings(
            speech.job_ack_timeout_ms, speech.attempt_timeout_ms, speech.job_timeout_ms, speech.max_attempts
        )
        self.dispatcher = Dispatcher(
            name, self.placer, self.router, stores.jobs, self.view, stores.storm, self.announcer, self.orphans,
            self.metrics, self.tasks, deadlines,
            node_grace_ms=speech.node_grace_ms, max_waiting=speech.max_waiting_jobs, failure_run=speech.failure_run,
            may_act=self.presence.may_act, wait_may_act=self.presence.wait_may_act,
        )  # fmt: skip
        snapshots = config.scheduler.phase2.node_snapshot
        self.local_nodes = LocalNodes(
            name, stores.owners, stores.nodes, self.router, self.announcer, self.metrics, self.tasks,
            silent_after_s=max(snapshots.presence_ttl_seconds, 2 * NODE_HEARTBEAT_S),
            job_s=speech.job_timeout_ms / 1000, shared=snapshots.enabled,
        )  # fmt: skip
        self.local_nodes.on_seen = self.view.saw
        self.local_nodes.driver_here = self.dispatcher.node_said

    def _build_sessions(self, config: Config) -> None:
        stores, speech = self.stores, config.speech
        settings = SessionsSettings(
            _session_settings(config), speech.binary_frames, speech.resume_grace_s, speech.detached_session_s,
            _session_limits(config),
        )  # fmt: skip
        self.sessions = Sessions(
            self.name, stores.owners, stores.turns, stores.sessions, self.dispatcher, self.router, self.mail,
            self.metrics, self.tasks, settings, guard=self.presence.guard,
        )  # fmt: skip
        self.resumption = Resumption(
            self.sessions, stores.sessions, stores.jobs, stores.instances, self.router, self.tasks,
            job_timeout_ms=speech.job_timeout_ms,
        )  # fmt: skip

    def _build_upkeep(self, config: Config) -> None:
        stores, phase2 = self.stores, config.scheduler.phase2
        self.reader = Reader(
            stores.inboxes, self.presence, self.metrics, self.handle,
            count=phase2.stream_count, block_ms=phase2.stream_block_ms,
        )  # fmt: skip
        self.reclaimer = Reclaimer(
            stores.inboxes, self.presence, self.reader, self.metrics,
            min_idle_ms=phase2.dlq_min_idle_ms, max_deliveries=phase2.dlq_max_deliveries,
            count=phase2.dlq_scan_count,
        )  # fmt: skip
        self.undertaker = Undertaker(
            self.name, stores.instances, stores.inboxes, stores.owners, stores.nodes, stores.jobs, stores.turns,
            self.announcer, self.metrics,
            lock_ms=int(phase2.instance_presence_ttl_seconds * 1000),
            steady=lambda: self.presence.steady, rehome=self.router.rehome, adopt=self.orphans.adopt,
            leave_behind=stores.sessions.grant_grace, session_over=self.orphans.session_over,
        )  # fmt: skip
        self.renewer = Renewer(
            stores.owners, self.name, self.local_nodes.ids, self.sessions.ids, self.local_nodes.named
        )
        self.sweeper = Sweeper(stores.nodes, int(phase2.node_snapshot.remove_stale_after_seconds * 1000))
        self.on_drain: Callable[[], None] = lambda: None  # set by the instance
        self.operations = Operations(self.router, stores.instances, stores.owners, stores.sessions, self.chat.users)
        self.history = History(self.name, self.metrics, stores.samples, stores.instances)
        self.register = Register(stores.redis, stores.keys, stores.instances, stores.jobs)
        self.report = Report(
            self.name, stores.instances, stores.inboxes, self.letters, self.view, stores.reservations,
            config.speech.default_slots,
        )  # fmt: skip

    # -- what others hand to us ------------------------------------------------------------------

    async def handle(self, message: InboxMessage) -> None:
        match message:
            case FromNode():
                await self.dispatcher.from_node(message)
            case Assign():
                await self.local_nodes.assign(message)
            case CancelJob():
                self.local_nodes.cancel(message)
            case Bounced():
                self.dispatcher.bounced(message)
            case Evict():
                self.local_nodes.evict(message)
            case JobEnded():
                await self.sessions.job_ended(message)
            case JobMoved():
                self.sessions.job_moved(message)
            case SessionMoved():
                self.sessions.session_moved(message)
            case UtteranceFor():
                self.sessions.utterance_for(message)
            case ToSocket():
                self.sessions.to_socket(message)
            case ChatPush() | ChatTell() | ChatKick() | ChatCatchUp():
                await self.chat.handle(message)
            case DrainInstance():
                self.on_drain()
            case DrainNode():
                await self.local_nodes.drain(message)
            case EndSession():
                self.sessions.end_by_operator(message)

    async def _returned(self) -> None:
        """Redis or we were away: write again what we own before anybody misses it."""
        await self.stores.inboxes.ensure_group(self.name)
        await self.stores.redis.call("SADD", self.stores.keys.instances, self.name)
        await self.renewer.run_once()
        await self.local_nodes.write_all()

    # -- what runs -------------------------------------------------------------------------------

    def loops(self, config: Config) -> dict[str, Coroutine[Any, Any, None]]:
        """The list of what runs, by name."""
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
            "undertaker": every(presence_s, self.undertaker.run_once, name="undertaker"),
            "orphans": every(slots_s, self.orphans.run_once, name="orphans"),
            "renewer": every(owner_s, self.renewer.run_once, name="renewer"),
            "session-keeper": every(owner_s, self.sessions.keep_all, name="session-keeper"),
            "grace": every(GRACE_INTERVAL_S, self.resumption.end_overdue, name="grace"),
            "reservations": every(slots_s, self.dispatcher.renew, name="reservations"),
            "fleet-view": every(refresh_s, self.view.run_once, name="fleet-view"),
            "silent-nodes": every(1.0, self.local_nodes.close_silent, name="silent-nodes"),
            "sweeper": every(refresh_s * 5, self.sweeper.run_once, name="sweeper"),
            "loop-lag": self._measure_lag(),
            "history": every(SAMPLE_MS / 1000, self.history.run_once, name="history"),
            **self._locksmith(config),
            **self.chat.loops(),
        }

    def _locksmith(self, config: Config) -> dict[str, Coroutine[Any, Any, None]]:
        """Only a file can change while we run."""
        if not config.security.secret_file:
            return {}
        locksmith = Locksmith(self.chat.tokens.keyring, lambda: secrets_of(config))
        return {"locksmith": every(LOOK_S, locksmith.run_once, name="locksmith")}

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
        config.limits.open_jobs_per_session,
    )  # fmt: skip


def _session_limits(config: Config) -> SessionLimits:
    limits = config.limits
    return SessionLimits(
        per_principal=limits.sessions_per_principal,
        per_gateway=limits.sessions_per_gateway,
        per_address=limits.sessions_per_address,
        instance=config.speech.max_sessions,
        detached_share=limits.detached_share,
    )
