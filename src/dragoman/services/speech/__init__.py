"""Speech: the files that an utterance passes, in the order in which it passes them.

                `gateway/websocket` ─▶ `gateway/session_endpoint`: a message of a client is decoded
session         the client's side: each cut becomes a request, and each end of a job settles an index
session_input   audio ─▶ `domain/segmenter` ─▶ cuts, or numbered utterances in order ─▶ job requests
job_request     the request, the queue of its turn, and what it asks of a room
dispatcher      all jobs that this instance drives; messages of nodes to their drivers
driver          one job: executes the steps on which `domain/job_run` decides
job_placement   a node, a slot, the record: two writes to Redis, then it may be sent
placer          the choice (`domain/placement`) on the local view, confirmed by a reservation
job_records     DISPATCHED, FINISHED and RELEASED in Redis
fleet_view      the nodes of all instances; the way to them is `routing/router`, a call or an inbox
local_nodes     the nodes connected here: the assignment goes out; results come in from `gateway/node_endpoint`
                ─▶ dispatcher ─▶ driver ─▶ session
session_output  `domain/release` ─▶ the result ─▶ outbox, if the session can resume ─▶ socket

Beside the way: `sessions` opens and ends them, `resumption` and `remote` continue them on other instances, `previews`
shows words meanwhile, `text_jobs` translates texts, `messages` builds what is sent, `node_health` and `orphans` deal
with what fails.
"""
