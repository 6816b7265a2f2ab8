"""The metrics of an instance, by their exposed names.

Names of the original systems are kept; all others start with `dragoman_`, in base units.

Counters, gauges and histograms are plain numbers; the exposition format is produced on request. The same calls as the
metrics library's own (`inc`, `set`, `observe`, `labels`) at a tenth of the cost: no lock, because there is one event
loop, and no loop over the buckets.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from dragoman.domain.history import quantile_ms

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class Value:
    """A counter's or gauge's value."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, by: float = 1.0) -> None:
        self.value += by

    def set(self, value: float) -> None:
        self.value = value


class Histogram:
    """A histogram's buckets."""

    __slots__ = ("_bounds", "buckets", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.buckets = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.total += value
        self.buckets[bisect_left(self._bounds, value)] += 1

    def quantile(self, share: float) -> float | None:
        """In milliseconds: the upper bound of the bucket that holds it; None before the first observation."""
        return quantile_ms(self.buckets, self._bounds, share)

    def merged(self, others: Iterable[Sequence[int]]) -> "Histogram":
        """With the buckets of others. Buckets with other bounds, from another release, are left out."""
        whole = Histogram(self._bounds)
        same = [buckets for buckets in others if len(buckets) == len(self.buckets)]
        whole.buckets = [sum(counts) for counts in zip(self.buckets, *same, strict=True)]
        return whole

    def cumulative(self) -> list[tuple[str, float]]:
        running, rows = 0, []
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self.buckets, strict=True):
            running += count
            rows.append((bound, float(running)))
        return rows


Child = TypeVar("Child", Value, Histogram)


class Labelled(Generic[Child]):
    """One child for each combination of label values. Code on a hot path keeps the child."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.children: dict[tuple[str, ...], Child] = {}

    def new(self) -> Child:
        raise TypeError("a kind of metric makes its own children")

    def labels(self, *values: str) -> Child:
        child = self.children.get(values)
        if child is None:
            child = self.children[tuple(map(str, values))] = self.new()
        return child


class Values(Labelled[Value]):
    def new(self) -> Value:
        return Value()


class Histograms(Labelled[Histogram]):
    def __init__(self, names: Sequence[str], bounds: Sequence[float]) -> None:
        super().__init__(names)
        self._bounds = bounds

    def new(self) -> Histogram:
        return Histogram(self._bounds)


class MetricSet(Collector):
    """All metrics of an instance, for the registry. All histograms have the buckets `bounds`."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._rows: list[tuple[str, str, type[Family], Values | Histograms]] = []

    def counter(self, name: str, help: str) -> Value:
        return self.counters(name, help, ()).labels()

    def counters(self, name: str, help: str, labels: Sequence[str]) -> Values:
        return self._add(name.removesuffix("_total"), help, CounterMetricFamily, Values(labels))

    def gauge(self, name: str, help: str) -> Value:
        return self.gauges(name, help, ()).labels()

    def gauges(self, name: str, help: str, labels: Sequence[str]) -> Values:
        return self._add(name, help, GaugeMetricFamily, Values(labels))

    def histogram(self, name: str, help: str) -> Histogram:
        return self.histograms(name, help, ()).labels()

    def histograms(self, name: str, help: str, labels: Sequence[str]) -> Histograms:
        return self._add(name, help, HistogramMetricFamily, Histograms(labels, self._bounds))

    Kind = TypeVar("Kind", Values, Histograms)

    def _add(self, name: str, help: str, family: type[Family], metric: Kind) -> Kind:
        self._rows.append((name, help, family, metric))
        return metric

    def collect(self) -> Iterator[Family]:
        for name, help, family, metric in self._rows:
            made = family(name, help, labels=list(metric.names))
            for values, child in list(metric.children.items()):
                if isinstance(made, HistogramMetricFamily):
                    assert isinstance(child, Histogram)
                    made.add_metric(list(values), child.cumulative(), child.total)
                else:
                    assert isinstance(child, Value)
                    made.add_metric(list(values), child.value)
            yield made


BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """One instance's metrics, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        make = MetricSet(BUCKETS_S)
        self.registry.register(make)
        self._routing(make)
        self._jobs(make)
        self._rooms(make)
        self._sessions(make)
        self._nodes_and_process(make)
        self._chat(make)

    def _routing(self, make: MetricSet) -> None:
        self.inbox_pending = make.gauge(
            "scheduler_phase2_inbox_pending", "Entries in this inbox: pending (read, not done) and unread"
        )
        self.dlq_moved = make.counter("scheduler_phase2_dlq_moved_total", "Inbox entries that became dead letters")
        self.dlq_full = make.counter("dragoman_dlq_full_total", "Dead letters refused because the limit is reached")
        self.inbox_done = make.counters("dragoman_inbox_done_total", "Inbox entries handled", ["kind"])
        self.pushed = make.counters(
            "dragoman_inbox_push_total",
            "Pushes to the inboxes of other instances: OK, GONE, FULL, TOO_LARGE",
            ["verdict"],
        )
        self.takeovers = make.counter("dragoman_takeovers_total", "Dead instances that this instance took over")
        self.parked = make.counter(
            "dragoman_lease_parked_total", "Frames and timers that waited until this instance had its lease again"
        )
        self.lease_lost = make.counter("dragoman_lease_lost_total", "Times this instance was declared dead")

    def _jobs(self, make: MetricSet) -> None:
        self.jobs = make.counters("dragoman_jobs_total", "Ended jobs by outcome and error code", ["outcome", "code"])
        self.driven = make.gauge("dragoman_jobs_driven", "Jobs that this instance drives now")
        self.failovers = make.counters(
            "dragoman_failovers_total",
            "Attempts without a result: node_lost, ack_timeout, attempt_timeout, model_not_available, job_failed, "
            "untranslated, assign_*",
            ["reason"],
        )
        self.dropped = make.counters(
            "dragoman_results_dropped_total", "Answers of nodes that were not delivered", ["reason"]
        )
        self.affinity = make.counters(
            "dragoman_affinity_total",
            "Jobs of a turn by what decided the node: hit, first, offline, not_in_pool, full",
            ["result"],
        )
        self.storm = make.counters("dragoman_storm_total", "MODEL_NOT_AVAILABLE answers", ["verdict"])
        self.pauses = make.counter("dragoman_node_pauses_total", "Pauses of nodes after consecutive failures")
        self.released = make.counters(
            "dragoman_release_total",
            "Utterances by end: sent, backfilled, empty, failed, skipped; dropped results: late, duplicate, ahead",
            ["state"],
        )

    def _rooms(self, make: MetricSet) -> None:
        self.rooms = make.gauge("dragoman_rooms", "Rooms that have members on this instance")
        self.room_members = make.gauge("dragoman_room_members", "Members of rooms on this instance")
        self.room_captions = make.counter("dragoman_room_captions_total", "Captions that this instance appended")
        self.room_lost = make.counters(
            "dragoman_room_lost_total", "Utterances spoken in a room that this instance noted as lost", ["reason"]
        )
        self.room_voice_dropped = make.counter(
            "dragoman_room_voice_dropped_total", "Pushes of translations to another instance that lost their sound"
        )
        self.room_translations = make.counters(
            "dragoman_room_translations_total",
            "Languages of captions by end: translated, no_node, timeout, failed, empty",
            ["end"],
        )
        self.room_delivery = make.histogram(
            "dragoman_room_delivery_seconds",
            "From the append of an entry to its delivery, by the clocks of both instances",
        )
        self.room_log_restarts = make.counters(
            "dragoman_room_log_restarts_total",
            "Rooms here with a new log epoch, because Redis lost entries: that members had (lost), or not (complete)",
            ["entries"],
        )
        self.room_refused = make.counters("dragoman_room_refused_total", "Refused room commands", ["reason"])

    def _sessions(self, make: MetricSet) -> None:
        self.withheld = make.counter("dragoman_quiet_finals_total", "Finals without speech, which made no job")
        self.sessions = make.gauge("dragoman_sessions", "Open sessions")
        self.detached = make.gauge(
            "dragoman_sessions_detached", "Sessions without a connection: they can be resumed, or belong to a gateway"
        )
        self.session_limits = make.counters(
            "dragoman_session_limits_total",
            "Sessions refused (principal, gateway, address, connection, instance), utterances failed (jobs), sessions "
            "ended (detached) and messages of clients that were slowed down (work) by a limit",
            ["limit"],
        )
        self.previews = make.gauge("dragoman_previews", "Utterances of sessions here that a node recognises meanwhile")
        self.preview_refused = make.counters(
            "dragoman_preview_refused_total",
            "Previews that a node did not begin or gave up: no_node, full, unknown, node, node_lost, inbox_full, link",
            ["reason"],
        )
        self.preview_dropped = make.counters(
            "dragoman_preview_audio_dropped_total",
            "Pieces of audio that a preview did not get: inbox_full, link (Redis was slow), slow_node",
            ["reason"],
        )
        self.preview_first = make.histogram(
            "dragoman_preview_first_partial_seconds", "From the beginning of an utterance to its first words"
        )

    def _nodes_and_process(self, make: MetricSet) -> None:
        self.nodes = make.gauge("dragoman_nodes", "Nodes connected to this instance")
        self.fleet = make.gauge("dragoman_fleet_nodes", "Nodes of the cluster that this instance knows")
        self.loop_lag = make.histogram("dragoman_loop_lag_seconds", "Delay of the event loop")
        self.log_dropped = make.counter(
            "dragoman_log_lines_dropped_total", "Log lines dropped because standard error was not read in time"
        )
        self.memory_blocks = make.gauge(
            "dragoman_memory_blocks", "Memory blocks allocated by Python; steady growth is a leak"
        )
        self.stage = make.histograms(
            "dragoman_job_stage_seconds",
            "Time from the cut to each stage of a job: placed, dispatched, acked, result, ended",
            ["stage"],
        )
        self.durability = make.gauges("dragoman_durability", "1 for the durability class of this Redis", ["class"])

    def _chat(self, make: MetricSet) -> None:
        self.chat_users = make.gauge("dragoman_chat_users", "Chat users connected to this instance")
        self.chat_shards = make.gauge("dragoman_chat_shards", "Chat shards that this instance owns")
        stages = make.histograms(
            "dragoman_chat_stage_seconds",
            "Stages of a message: accept_write (Redis), accept_ack (frame to ACK accepted), deliver, save_lag "
            "(accepted to saved), db_queue (one-phase: wait for the database)",
            ["stage"],
        )
        self.chat_accept_write = stages.labels("accept_write")
        self.chat_accept_ack = stages.labels("accept_ack")
        self.chat_deliver = stages.labels("deliver")
        self.chat_save_lag = stages.labels("save_lag")
        self.chat_db_queue = stages.labels("db_queue")
        self.chat_logins_refused = make.counters(
            "dragoman_chat_logins_refused_total",
            "Refused logins: password, address, name, queue, invite, weak_password, guessable",
            ["reason"],
        )
        self.chat_history_refused = make.counter(
            "dragoman_chat_history_refused_total", "History requests beyond limits.chat_history_per_minute"
        )
        self.chat_translations = make.counters(
            "dragoman_chat_translations_total",
            "Requests for translations of chat messages, by their end (translated, stored, same_language, "
            "message_not_found, gone, or the reason)",
            ["end"],
        )
        self.chat_translations_waiting = make.gauge(
            "dragoman_chat_translations_waiting", "Requests for translations of chat messages that have no answer yet"
        )
        self.chat_expired = make.counter(
            "dragoman_chat_expired_total", "Messages that were deleted because they are older than chat.retention_days"
        )
        self.chat_expired_undelivered = make.counter(
            "dragoman_chat_expired_undelivered_total", "Messages among them that their receivers had not got"
        )
        self.chat_deliver_fail = make.counter(
            "dragoman_chat_deliver_fail_total", "Messages and notices to users that could not be delivered"
        )
        self.chat_publish_fail = make.counter("dragoman_chat_publish_fail_total", "Messages that Redis did not accept")
        self.chat_save_fail = make.counter(
            "dragoman_chat_save_fail_total", "Transactions that did not commit, and rows that the database refused"
        )
        self.chat_dup_db = make.counter("dragoman_chat_dup_db_total", "Messages that were already stored")
        self.chat_other_body = make.counter(
            "dragoman_chat_other_body_total",
            "Messages with a known clientMsgId and another body; the first message stays",
        )
        self.chat_server_busy = make.counter("dragoman_chat_server_busy_total", "Messages answered server_busy")
        self.chat_over_quota = make.counter(
            "dragoman_chat_over_quota_total",
            "Messages refused because the sender has reached limits.chat_bytes_per_day",
        )
        self.chat_dead = make.counter("dragoman_chat_dead_total", "Messages that became dead letters")
        self.chat_dropped = make.gauges(
            "dragoman_chat_dead_letters_dropped",
            "Dead letters of the shard dropped because of their number or age",
            ["shard"],
        )
        self.chat_backlog = make.gauges(
            "dragoman_chat_backlog", "Accepted messages of the shard that are not saved yet", ["shard"]
        )
        self.chat_stream = make.gauges(
            "dragoman_chat_stream_length", "Entries of the stream (accepted, to_save)", ["stream", "shard"]
        )
        self.chat_pending = make.gauges(
            "dragoman_chat_stream_pending", "Entries of the stream that were read and not finished", ["stream", "shard"]
        )
