"""Builds the services of rooms, and lists their loops and the inbox messages they handle."""

from collections.abc import Coroutine
from typing import Any

from dragoman.config import Config
from dragoman.domain.limits.rates import RatePerKey
from dragoman.protocol.peer import RoomChanged, RoomEnded, RoomEntries, RoomMemberRemoved, RoomPartial, RoomSignal
from dragoman.services.loops import Tasks, every
from dragoman.services.metrics import Metrics
from dragoman.services.rooms.commands import RoomCommands
from dragoman.services.rooms.local_rooms import LocalRooms
from dragoman.services.rooms.membership import RoomMembership
from dragoman.services.rooms.room_log import Captions, RoomLog
from dragoman.services.rooms.speakers import RoomSpeakers
from dragoman.services.rooms.upkeep import DUE_S, POLL_S, RENEW_S, RoomUpkeep
from dragoman.services.routing.router import Handlers, Router, drop
from dragoman.services.speech.fleet_view import FleetView
from dragoman.services.speech.text_jobs import TextJobs
from dragoman.store.attempts import RoomAttempts
from dragoman.store.keys import Keys
from dragoman.store.redis import Redis
from dragoman.store.rooms.rooms import RoomBounds
from dragoman.store.rooms.rooms import Rooms as RoomStore


class RoomLogs:
    """The logs of rooms, without what needs jobs: a takeover notes what was lost in them."""

    def __init__(
        self, config: Config, instance: str, redis: Redis, keys: Keys, router: Router, metrics: Metrics, tasks: Tasks
    ) -> None:
        self.store = RoomStore(redis, keys, _bounds(config))
        self.local = LocalRooms(self.store, metrics, tasks)
        self.log = RoomLog(instance, self.store, self.local, router, metrics, tasks)
        self.attempts = RoomAttempts(redis, keys, config.rooms.persistent_per_day)


class Rooms:
    def __init__(
        self,
        config: Config,
        instance: str,
        logs: RoomLogs,
        view: FleetView,
        text_jobs: TextJobs,
        metrics: Metrics,
        tasks: Tasks,
    ) -> None:
        settings = config.rooms
        self.store, self.local, self.log = logs.store, logs.local, logs.log
        captions = Captions(self.store, self.log, text_jobs, metrics, tasks)
        caption_rate = RatePerKey(settings.captions_per_minute) if settings.captions_per_minute else None
        self.speakers = RoomSpeakers(
            self.store, self.local, self.log, captions, view, tasks,
            caption_rate=caption_rate, audio_s_per_minute=settings.audio_seconds_per_minute,
        )  # fmt: skip
        self.membership = RoomMembership(
            instance, self.store, self.local, self.log, view,
            history=settings.history, join_by_code=settings.join_by_code,
            opened_per_minute=settings.opened_per_minute, attempts=logs.attempts,
        )  # fmt: skip
        self.commands = RoomCommands(
            self.membership, self.store, self.local, self.log, captions, self.speakers, metrics, tasks,
            caption_rate=caption_rate, leave_s=config.speech.close_wait_ms / 1000,
        )  # fmt: skip
        self.upkeep = RoomUpkeep(self.store, self.local, self.log, self.membership, metrics)

    def register(self, handlers: Handlers) -> None:
        """Nothing is sent elsewhere if its instance is dead: members read the log when they have joined again."""
        handlers.register(RoomEntries, self.log.on_entries, rehome=drop)
        handlers.register(RoomPartial, self.log.on_partial, rehome=drop)
        handlers.register(RoomChanged, self.membership.on_changed, rehome=drop)
        handlers.register(RoomMemberRemoved, self.membership.on_member_removed, rehome=drop)
        handlers.register(RoomEnded, self.membership.on_ended, rehome=drop)
        handlers.register(RoomSignal, self.commands.on_signal, rehome=drop)

    def loops(self) -> dict[str, Coroutine[Any, Any, None]]:
        return {
            "due-rooms": every(DUE_S, self.upkeep.visit_due, name="due-rooms"),
            "local-rooms": every(POLL_S, self.upkeep.poll_local, name="local-rooms"),
            "room-renewal": every(RENEW_S, self.upkeep.renew, name="room-renewal"),
        }


def _bounds(config: Config) -> RoomBounds:
    rooms = config.rooms
    return RoomBounds(
        max_members=rooms.max_members,
        max_languages=rooms.max_languages,
        max_entries=rooms.max_entries,
        translate_timeout_ms=rooms.translate_timeout_ms,
        empty_grace_ms=int(rooms.empty_grace_s * 1000),
        idle_ms=int(rooms.idle_s * 1000),
        transcript_ms=int(rooms.transcript_hours * 3_600_000),
        persistent_ms=int(rooms.persistent_days * 86_400_000),
    )
