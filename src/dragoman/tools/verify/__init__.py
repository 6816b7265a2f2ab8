"""What `dragoman verify` is made of: load, faults, and a verdict over what clients were told.

crowds        people who chat and speak through the SDKs; a ledger each of what they were told
recording_node  nodes that write down every job they are given
facts         what the stores hold when all is at rest
check         pure: ledgers, recordings and facts in, every broken promise out, in words
"""
