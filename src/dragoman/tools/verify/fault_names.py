"""The names of all faults, and what the table calls them; apart from how they are done, so that a help text is fast."""

HEALTHY = "none"

TITLES = {
    HEALTHY: "no fault",
    "node-kill": "node killed -9",
    "instance-kill": "instance killed -9",
    "instance-pause": "instance paused past its presence",
    "redis-kill": "Redis killed -9, fsync always",
    "redis-kill-everysec": "Redis killed -9, fsync every second",
    "master-kill": "Cluster master killed -9",
    "database-stop": "database stopped and back",
    "link-cut": "link to Redis cut",
    "link-hold": "link to Redis held, nobody told",
    "receiver-flap": "receivers flapping",
    "slow-reader": "slow readers",
}
