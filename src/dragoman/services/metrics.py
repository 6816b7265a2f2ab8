"""What is counted, by the names others read.

Names of the originals are kept where there were any; all others start with `dragoman_`, in base units.
Label values are resolved once, here or by the caller, never per message.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

STAGES_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """One instance's metrics, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = r = CollectorRegistry()
        self.inbox_pending = Gauge("scheduler_phase2_inbox_pending", "Entries waiting in this inbox", registry=r)
        self.dlq_moved = Counter("scheduler_phase2_dlq_moved_total", "Entries moved to the dead letters", registry=r)
        self.dlq_full = Counter(
            "dragoman_dlq_full_total", "Dead letters refused because there are too many", registry=r
        )
        self.inbox_done = Counter("dragoman_inbox_done_total", "Inbox entries worked", ["kind"], registry=r)
        self.pushed = Counter("dragoman_inbox_push_total", "Pushes to other inboxes", ["verdict"], registry=r)
        self.burials = Counter("dragoman_undertaker_burials_total", "Dead instances buried here", registry=r)
        self.parked = Counter("dragoman_lease_parked_total", "Callbacks that waited for the lease", registry=r)
        self.buried = Counter("dragoman_lease_lost_total", "Times others had buried us", registry=r)
        self.jobs = Counter("dragoman_jobs_total", "Jobs by how they ended", ["outcome", "code"], registry=r)
        self.driven = Gauge("dragoman_jobs_driven", "Jobs this instance drives now", registry=r)
        self.failovers = Counter("dragoman_failovers_total", "Attempts given up", ["reason"], registry=r)
        self.dropped = Counter("dragoman_results_dropped_total", "Answers not delivered", ["reason"], registry=r)
        self.affinity = Counter("dragoman_affinity_total", "What became of a turn's node", ["result"], registry=r)
        self.storm = Counter("dragoman_storm_total", "MODEL_NOT_AVAILABLE answers", ["verdict"], registry=r)
        self.released = Counter("dragoman_release_total", "How utterances were settled", ["state"], registry=r)
        self.sessions = Gauge("dragoman_sessions", "Open sessions", registry=r)
        self.nodes = Gauge("dragoman_nodes", "Nodes connected here", registry=r)
        self.fleet = Gauge("dragoman_fleet_nodes", "Nodes known here", registry=r)
        self.loop_lag = Histogram("dragoman_loop_lag_seconds", "Event loop lag", buckets=STAGES_S, registry=r)
        self.stage = Histogram(
            "dragoman_job_stage_seconds", "From the cut to each stage of a job", ["stage"], buckets=STAGES_S, registry=r
        )
        self.durability = Gauge("dragoman_durability", "1 for the durability class of accepted", ["class"], registry=r)
