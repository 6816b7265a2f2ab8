"""Chat: one file for each step of a message, in the order in which the message passes them.

outbound        the messages of one connection, one at a time; each goes through two phases or through one
acceptance      two phases: claim and append in Redis ─▶ ACK accepted
save_stage      accepted ─▶ one transaction ─▶ push ─▶ ACK saved ─▶ deleted from Redis
one_phase       one phase: one transaction ─▶ push ─▶ ACK saved
delivery        to the receiver's instance: a local socket, or the inbox of another instance
inbound         the messages for one connection: undelivered ones of the archive first, then live ones
receipts        *delivered* and *read*, from the receiver to SQL and to the sender
"""
