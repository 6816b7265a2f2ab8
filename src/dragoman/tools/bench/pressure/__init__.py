"""`dragoman bench load`: how much is held, alone and together, and what happens when it is more than that.

    sockets, messages, jobs   the most of each alone                         alone
    half                      half of each together, for minutes             together
    target                    10,000 sockets, 2,000 messages/s, 200 jobs/s   together
    storm                     10,000 sockets gone at once, and back          storm
    above                     far more than the most, then less again        above

Every client keeps count of what it asked for and what became of it; `bench` runs the parts one after the other, each on
instances of its own, and a part that needs what another found uses that, or what is usual when the other was left out.
"""
