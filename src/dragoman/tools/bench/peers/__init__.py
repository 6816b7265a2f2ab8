"""Task queues that run a no-op task in the same run, on the same Redis: what a good queue of today manages here.

Each is set up as its own documentation says, at its best: uvloop, hiredis where it can, a result kept for every task.

    queue       what a peer is: `work`, `enqueue`, `done`
    process     the process of a worker, and that of a producer
    race        both of them, and so many seconds of their time
"""
