"""`dragoman bench abuse`: what healthy clients notice when other clients misbehave.

raw_client       a client made of bytes, which can do what no library would
attack           an attack, its expected answers, and the instances that it targets
messages, frames, connections, accounts, rooms
                 one round of each attack
attacker         the process that they run in, at a low priority: it stands for another machine
healthy_clients  a process with a speech session, its node, two chat users and two members of a room, timed
environment      two instances with a secret, the two processes, and what is left when everything has settled
bench            each attack between two measurements of the healthy clients, and the tables
page             the same as Markdown, from the file that the bench has written
"""
