"""The parts of `dragoman verify`: load, faults, and a verdict over what was promised to clients.

clients         chat users, speakers and members of a room that use the SDKs, and the ledgers of what they were promised
recording_node  nodes that record every job they get
facts           what the stores have when everything is at rest
check           pure: ledgers, recordings and facts in, every broken promise out, as sentences

The names of the faults are here, apart from the faults themselves, so that a help text is fast.
"""

HEALTHY = "none"

TITLES = {
    HEALTHY: "no fault",
    "node-kill": "node killed -9",
    "text-node-kill": "only node of a language killed -9",
    "instance-kill": "instance killed -9",
    "driver-kill": "driver of a caption killed -9",
    "speaker-kill": "instance of a speaker in a room killed -9",
    "recogniser-kill": "recognising node of rooms killed -9",
    "instance-pause": "instance paused past its presence",
    "redis-kill": "Redis killed -9, fsync always",
    "redis-kill-everysec": "Redis killed -9, fsync every second",
    "master-kill": "Cluster master killed -9",
    "database-stop": "database stopped and started",
    "link-cut": "link to Redis cut",
    "link-stall": "link to Redis stalled",
    "receiver-flap": "receivers reconnecting",
    "slow-reader": "slow readers",
}
