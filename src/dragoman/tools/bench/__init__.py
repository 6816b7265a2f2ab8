"""What `dragoman bench …` measures, one module a bench: `store`, and others beside it.

A figure of one machine says little, so every bench runs its peers in the same process and the same minute, in rounds
that take turns, and states ratios. The parts a bench is made of:

    servers   the Redis under test, started here and gone afterwards
    load      so many callers, as fast as they are answered
    ping      the least a round trip can take here and now
    rounds    cases in turns, medians; a peer that fails is left out by name
    report    machine, commit, figures, ratios: a table and a JSON file
    load_process    a process that makes load, told by lines: nodes, speakers, pings, and the queues in `peers`
    harness  instances, nodes and speakers around one Redis, each a process of its own

Nothing in here is asserted by a test. Outside, only `verify` uses some of it: the load_process, the bar, the report.
"""
