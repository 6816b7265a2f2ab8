"""What is counted, by the names others read.

Names of the originals are kept where there were any; all others start with `dragoman_`, in base units.
"""

from prometheus_client import CollectorRegistry

from dragoman.services.tallies import Board

STAGES_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """One instance's metrics, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        board = Board()
        self.registry.register(board)
        self.inbox_pending = board.gauge(
            "scheduler_phase2_inbox_pending", "Entries in this inbox: pending (read, not done) and unread"
        )
        self.dlq_moved = board.counter("scheduler_phase2_dlq_moved_total", "Entries moved to the dead letters")
        self.dlq_full = board.counter("dragoman_dlq_full_total", "Dead letters refused because there are too many")
        self.inbox_done = board.counters("dragoman_inbox_done_total", "Inbox entries worked", ["kind"])
        self.pushed = board.counters("dragoman_inbox_push_total", "Pushes to other inboxes", ["verdict"])
        self.takeovers = board.counter("dragoman_takeovers_total", "Dead instances taken over")
        self.parked = board.counter("dragoman_lease_parked_total", "Callbacks that waited for the lease")
        self.lease_lost = board.counter("dragoman_lease_lost_total", "Times this instance was declared dead")
        self.jobs = board.counters("dragoman_jobs_total", "Jobs by how they ended", ["outcome", "code"])
        self.driven = board.gauge("dragoman_jobs_driven", "Jobs this instance drives now")
        self.failovers = board.counters("dragoman_failovers_total", "Attempts given up", ["reason"])
        self.dropped = board.counters("dragoman_results_dropped_total", "Answers not delivered", ["reason"])
        self.affinity = board.counters("dragoman_affinity_total", "What became of a turn's node", ["result"])
        self.storm = board.counters("dragoman_storm_total", "MODEL_NOT_AVAILABLE answers", ["verdict"])
        self.pauses = board.counter("dragoman_node_pauses_total", "Nodes paused after a run of failures")
        self.released = board.counters("dragoman_release_total", "How utterances were settled", ["state"])
        self.withheld = board.counter("dragoman_quiet_finals_total", "Finals in which nothing was said")
        self.sessions = board.gauge("dragoman_sessions", "Open sessions")
        self.detached = board.gauge("dragoman_sessions_detached", "Sessions without a connection")
        self.session_limits = board.counters(
            "dragoman_session_limits_total", "Sessions and utterances refused, or ended, by a limit", ["limit"]
        )
        self.nodes = board.gauge("dragoman_nodes", "Nodes connected here")
        self.fleet = board.gauge("dragoman_fleet_nodes", "Nodes known here")
        self.loop_lag = board.histogram("dragoman_loop_lag_seconds", "Event loop lag", STAGES_S)
        self.log_dropped = board.counter("dragoman_log_lines_dropped_total", "Log lines that nobody took in time")
        self.memory_blocks = board.gauge("dragoman_memory_blocks", "Pieces of memory that Python objects have")
        self.stage = board.histograms(
            "dragoman_job_stage_seconds", "From the cut to each stage of a job", ["stage"], STAGES_S
        )
        self.durability = board.gauges("dragoman_durability", "1 for the durability class of accepted", ["class"])
        self._chat(board)

    def _chat(self, board: Board) -> None:
        self.chat_users = board.gauge("dragoman_chat_users", "Chat users connected here")
        self.chat_shards = board.gauge("dragoman_chat_shards", "Chat shards this instance works")
        stages = board.histograms("dragoman_chat_stage_seconds", "Stages of a message", ["stage"], STAGES_S)
        self.chat_accept_write = stages.labels("accept_write")
        self.chat_accept_ack = stages.labels("accept_ack")
        self.chat_deliver = stages.labels("deliver")
        self.chat_save_lag = stages.labels("save_lag")
        self.chat_db_queue = stages.labels("db_queue")
        self.chat_logins_refused = board.counters(
            "dragoman_chat_logins_refused_total", "Logins that were refused", ["reason"]
        )
        self.chat_history_refused = board.counter(
            "dragoman_chat_history_refused_total", "Requests for history beyond a user's rate"
        )
        self.chat_deliver_fail = board.counter("dragoman_chat_deliver_fail_total", "Pushes and words not handed over")
        self.chat_publish_fail = board.counter("dragoman_chat_publish_fail_total", "Messages Redis did not accept")
        self.chat_save_fail = board.counter(
            "dragoman_chat_save_fail_total", "Transactions that did not commit, and rows that were refused"
        )
        self.chat_dup_db = board.counter("dragoman_chat_dup_db_total", "Messages that were rows already")
        self.chat_other_body = board.counter(
            "dragoman_chat_other_body_total", "Repeated clientMsgIds with another body"
        )
        self.chat_server_busy = board.counter("dragoman_chat_server_busy_total", "Messages answered server_busy")
        self.chat_over_quota = board.counter("dragoman_chat_over_quota_total", "Messages beyond their sender's quota")
        self.chat_dead = board.counter("dragoman_chat_dead_total", "Messages that became dead letters")
        self.chat_dropped = board.gauges(
            "dragoman_chat_dead_letters_dropped", "Dead letters ever dropped for their number or age", ["shard"]
        )
        self.chat_backlog = board.gauges("dragoman_chat_backlog", "Accepted, not yet saved messages", ["shard"])
        self.chat_stream = board.gauges("dragoman_chat_stream_length", "Entries of a stream", ["stream", "shard"])
        self.chat_pending = board.gauges("dragoman_chat_stream_pending", "Given out, not done", ["stream", "shard"])
