"""Promises that the stores keep at rest: nothing taken, nothing left over, accounts that add up."""

from collections.abc import Iterator

from dragoman.tools.verify.facts import Facts
from dragoman.tools.verify.findings import Finding, Forgiven
from dragoman.tools.verify.speech_ledger import SpeechLedger


def findings(facts: Facts, before: Facts, speech: SpeechLedger, forgiven: Forgiven) -> Iterator[Finding]:
    """`before`: the same stores at rest, before this part of the run began."""
    yield from _nothing_taken(facts)
    yield from _accounts(facts, before, forgiven)
    yield from _jobs_are_over(facts, speech, forgiven)
    if not forgiven.forgot:
        yield from (Finding("key leak", f"{sentence}.") for sentence in facts.leaks if sentence not in before.leaks)


def forgotten(facts: Facts, before: Facts, forgiven: Forgiven) -> Iterator[str]:
    """What is wrong with accounts and keys because Redis forgot, in words."""
    if forgiven.forgot:
        yield from facts.leaks
        yield from _off_since(facts, before)


def _nothing_taken(facts: Facts) -> Iterator[Finding]:
    for node, jobs in facts.slots.items():
        yield Finding("slot leak", f"{node} has {len(jobs)} slots taken at rest, by {', '.join(sorted(jobs)[:5])}")
    for number, shard in enumerate(facts.shards):
        left = {
            "accepted": shard.accepted_len,
            "to_save": shard.to_save_len,
            "pending": shard.accepted_pending + shard.to_save_pending,
            "backlog": shard.backlog,
        }
        if any(left.values()):
            yield Finding("shard left", f"shard {number} has work left at rest: {left}")
    for sender, count in facts.unsaved.items():
        yield Finding("shard left", f"{count} messages of {sender} are counted as unsaved, and none is on its way")
    for instance, tally in facts.inboxes.items():
        if tally.waiting:
            yield Finding("inbox left", f"the inbox of {instance} holds {tally.waiting} entries at rest")


def _accounts(facts: Facts, before: Facts, forgiven: Forgiven) -> Iterator[Finding]:
    if not forgiven.forgot:
        yield from (Finding("account", sentence) for sentence in _off_since(facts, before))


def _off_since(facts: Facts, before: Facts) -> Iterator[str]:
    """Accounts that do not add up, in words; without those that were off by as much before."""
    known = dict(_balances(before))
    words = {f"the inbox of {name}": str(tally) for name, tally in facts.inboxes.items()}
    words |= {f"shard {number}": str(tally) for number, tally in enumerate(facts.shards)}
    for name, by in _balances(facts):
        if by and by != known.get(name, 0):
            yield f"{name} is {by:+d} off: {words[name]}"


def _balances(facts: Facts) -> Iterator[tuple[str, int]]:
    """By how much more was put in than came out and is there."""
    for instance, box in facts.inboxes.items():
        yield f"the inbox of {instance}", box.added - box.done - box.dead - box.waiting
    for number, shard in enumerate(facts.shards):
        yield f"shard {number}", shard.accepted - shard.saved - shard.dead - shard.backlog


def _jobs_are_over(facts: Facts, speech: SpeechLedger, forgiven: Forgiven) -> Iterator[Finding]:
    for job in facts.jobs.values():
        if not job.is_over and not _told_and_forgotten(job.session, job.index, speech, forgiven):
            yield Finding(
                "no outcome", f"job {job.job} (utterance {job.index} of {job.session}) is {job.state} at rest"
            )
    for instance, jobs in facts.driven.items():
        left = [job for job in jobs if job not in facts.jobs or facts.jobs[job].is_over]
        if left and not forgiven.forgot:
            yield Finding("key leak", f"{instance} is noted as driving jobs that are over: {sorted(left)[:5]}")


def _told_and_forgotten(session: str, index: int, speech: SpeechLedger, forgiven: Forgiven) -> bool:
    spoken = speech.sessions.get(session)
    return spoken is not None and any(map(forgiven.may_be_forgotten, spoken.told_at(index)))
