"""`dragoman bench abuse`: what it costs others when somebody misbehaves.

wire        a client made of bytes, that does what no library would
scene       what an attack knows: where to, whom to pretend to be, how much of it
attacks     one round each; what is wrong with it must be answered, and how is written beside it
attacker    the process they run in, at a low priority: it stands for another machine
healthy_clients
            a process with a speech session, its node and two chat users, timed and missing nothing
stage       two instances with a secret, the two processes, and what is left over when all is quiet
abuse       the bench: each attack between two looks at the healthy clients, and the table
"""
