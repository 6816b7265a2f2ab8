"""Promises that recordings of nodes prove: one job an utterance, each attempt once, slots respected, turns together."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from dragoman.tools.verify.facts import JobFact
from dragoman.tools.verify.findings import Finding, Rules, Tolerated
from dragoman.tools.verify.recordings import Assignment, Attempt, Recordings, assignments, max_jobs


def findings(
    recordings: Recordings, jobs: Mapping[str, JobFact], tolerated: Tolerated, rules: Rules
) -> Iterator[Finding]:
    over_at = {job.job: job.finished_at for job in jobs.values() if job.finished_at is not None}
    found = list(assignments(recordings, over_at, rules.slack_s))
    yield from _one_job_each(recordings, jobs)
    yield from _started_once(recordings)
    yield from _same_audio(recordings)
    yield from _slots_are_respected(found, rules)
    yield from _turns_stay(recordings, found, tolerated, rules)
    yield from _in_time(jobs, tolerated, rules)


def _one_job_each(recordings: Recordings, jobs: Mapping[str, JobFact]) -> Iterator[Finding]:
    names: dict[tuple[str, int], set[str]] = defaultdict(set)
    for attempt in recordings.attempts.values():
        names[attempt.session, attempt.index].add(attempt.job)
    for job in jobs.values():
        names[job.session, job.index].add(job.job)
    for (session, index), several in names.items():
        if len(several) > 1:
            yield Finding("double booking", f"utterance {index} of {session} is {len(several)} jobs: {sorted(several)}")
    nodes: dict[tuple[str, int], set[str]] = defaultdict(set)
    for one in recordings.attempts.values():
        nodes[one.job, one.attempt].add(one.node)
    for (name, number), them in nodes.items():
        if len(them) > 1:
            yield Finding("double booking", f"attempt {number} of {name} was given to {' and '.join(sorted(them))}")


def _started_once(recordings: Recordings) -> Iterator[Finding]:
    times: Counter[tuple[str, int]] = Counter()
    for one in recordings.attempts.values():
        times[one.job, one.attempt] += len(one.started)
    for (job, attempt), count in times.items():
        if count > 1:
            yield Finding("started twice", f"attempt {attempt} of {job} was started {count} times")


def _same_audio(recordings: Recordings) -> Iterator[Finding]:
    audio: dict[str, set[str]] = defaultdict(set)
    for one in recordings.attempts.values():
        if one.pieces is not None:
            audio[one.job].add(one.pieces)
    for job, versions in audio.items():
        if len(versions) > 1:
            yield Finding("altered", f"attempts of {job} were given different audio: {sorted(versions)}")


def _slots_are_respected(found: list[Assignment], rules: Rules) -> Iterator[Finding]:
    """A job that is bound to its turn may come to the node before one that took its slot earlier: so it is not the
    order of coming that counts, but how many there are, and how many of those are bound to nothing."""
    for one in found:
        beyond = one.others >= one.event.slots + rules.overcommit
        if beyond or (not one.bound and one.free >= one.event.slots):
            kind = "of a turn it had a job of" if one.bound else "bound to no turn of its own"
            who = f"{one.event.node} has {one.event.slots} slots and {one.others} jobs, and was given {one.event.job}"
            yield Finding("over its slots", f"{who} ({kind}; utterance {one.event.index} of {one.event.session})")


def _turns_stay(
    recordings: Recordings, found: list[Assignment], tolerated: Tolerated, rules: Rules
) -> Iterator[Finding]:
    for first, *others in recordings.turns():
        if first.attempt != 1:
            continue  # the node that the turn was bound to recorded nothing of it
        for one in others:
            if one.node != first.node and one.attempt == 1:
                yield from _strayed(first, one, recordings, found, tolerated, rules)


def _strayed(
    first: Attempt, one: Attempt, recordings: Recordings, found: list[Assignment], tolerated: Tolerated, rules: Rules
) -> Iterator[Finding]:
    at = min(one.given)
    port = recordings.port_of(first.node, at, rules.settle_s)
    if port is None or not tolerated.undisturbed(at - rules.settle_s, at, port):
        return
    slots = max(assignment.event.slots for assignment in found if assignment.event.node == first.node)
    # Jobs that were placed and had not reached the node yet held a slot as well: nearly full may have been full.
    if max_jobs(found, first.node, at, rules.slack_s) >= slots + rules.overcommit - 2:
        return
    where = f"utterance {one.index} of {one.session} went to {one.node}"
    yield Finding("strayed", f"{where}, its turn {one.turn} was on {first.node}, which was there and had room")


def _in_time(jobs: Mapping[str, JobFact], tolerated: Tolerated, rules: Rules) -> Iterator[Finding]:
    for job in jobs.values():
        ended = job.finished_at
        if ended is None or not tolerated.undisturbed(job.created_at, ended):
            continue
        took_s = ended - job.created_at
        if took_s > rules.job_s + rules.slack_s:
            yield Finding("late", f"job {job.job} ({job.outcome}) ended {took_s:.1f} s after it was made")
