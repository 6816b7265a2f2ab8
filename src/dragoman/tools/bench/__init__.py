"""The benches of `dragoman bench`, one module each: store, speech, dispatch, live, chat, rooms, load, engines, and
the package abuse.

A figure of one machine says little, so every bench runs its peers in the same minute, in rounds that take turns, and
states ratios. The parts of a bench:

    environment   Redis, instances, and the load processes around them
    measure       cases in turns, medians, closed loops, percentiles
    *_load        load processes: nodes and speakers, rooms that speak, chat users, readers of a room, idle sockets
    ping          the shortest possible round trip to Redis
"""
