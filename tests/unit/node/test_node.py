import asyncio
import dataclasses
import signal
import subprocess
import sys
from http import HTTPStatus
from typing import Any

import pytest
from picows import WSMsgType

from dragoman.node import (
    Assigned,
    Cancelled,
    Capabilities,
    ConnectFailed,
    Disconnected,
    Job,
    ModelNotAvailable,
    Node,
    NodeEvent,
    NodeRefused,
    Registered,
    Result,
    Timing,
)
from dragoman.protocol.codes import Close
from dragoman.protocol.node import (
    JobAck,
    JobCancel,
    JobResult,
    JobStarted,
    NodeControl,
    NodeHeartbeat,
    NodePartial,
    NodeRegister,
)
from dragoman.protocol.session import Error
from support.waiting import ON_BOTH_LOOPS, wait_until
from unit.node.fake_scheduler import FakeScheduler, details, running

QUICK = Timing(backoff_first_s=0.01, backoff_longest_s=0.02, heartbeat_s=60, ask_read_s=0.001)
FORGETFUL = dataclasses.replace(QUICK, linger_results_s=0)


async def translate(job: Job) -> Result:
    job.partial("so far")
    return Result(f"utterance {job.utterance_index}", "dicho")


class Gate:
    """A handler that goes on when the test says so."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.begun = 0

    async def __call__(self, job: Job) -> Result:
        self.begun += 1
        await self.open.wait()
        return Result(f"utterance {job.utterance_index}")


def node_of(fake: FakeScheduler, handler: Any = translate, timing: Timing = QUICK, **options: Any) -> Node:
    return Node(fake.url, handler, languages=["en", "es"], timing=timing, **options)


def failed(events: list[NodeEvent]) -> int:
    return sum(isinstance(event, ConnectFailed) for event in events)


class Captions:
    """A handler that says that it has no voice."""

    has_voice = False

    async def __call__(self, job: Job) -> Result:
        return Result("said", "dicho")


async def test_a_node_whose_handler_has_no_voice_registers_for_text_only(fake: FakeScheduler) -> None:
    async with running(node_of(fake, Captions())):
        register = await fake.hears(NodeRegister)
        assert register.language_capabilities is not None
        assert register.language_capabilities.semantic_languages == ["en", "es"]
        assert register.language_capabilities.tts_languages == []
        assert {one.type: one.ready for one in register.capability_by_type or ()}["tts"] is False


def test_a_node_that_promises_a_voice_its_handler_does_not_have_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="tts names languages"):
        Node("ws://127.0.0.1:1/ws/node", Captions(), Capabilities(["en"], ["es"], tts=["es"]))


class Texts:
    """A handler that translates text, and recognises or speaks nothing."""

    recognises = has_voice = False
    translates_text = True

    async def __call__(self, job: Job) -> Result:
        return Result("", f"{job.text} in {job.tgt_lang}")


class Everything(Texts):
    recognises = has_voice = True


@pytest.mark.parametrize(
    ("handler", "asr", "pairs"),
    [
        (Texts(), [], [("en", "es"), ("es", "en")]),
        (Everything(), ["en", "es"], [("en", "es"), ("es", "en")]),
        (translate, ["en", "es"], None),  # a plain function knows audio only
    ],
)
async def test_node_registers_for_what_its_handler_can_do(
    fake: FakeScheduler, handler: Any, asr: list[str], pairs: list[tuple[str, str]] | None
) -> None:
    async with running(node_of(fake, handler)):
        register = await fake.hears(NodeRegister)
        assert register.text_pairs == pairs
        assert ("text_jobs" in (register.advanced_features or ())) is (pairs is not None)
        assert register.language_capabilities is not None
        assert register.language_capabilities.asr_languages == asr
        ready = {one.type: one.ready for one in register.capability_by_type or ()}
        assert (ready["asr"], ready["nmt"]) == (bool(asr), True)


async def test_named_text_pairs_are_registered_for_any_handler(fake: FakeScheduler) -> None:
    capabilities = Capabilities(text_pairs=[("auto", "es")], slots=2)
    async with running(Node(fake.url, translate, capabilities, timing=QUICK)):
        register = await fake.hears(NodeRegister)
        assert register.text_pairs == [("auto", "es")]
        assert "slots:2" in (register.advanced_features or ())


def test_node_does_not_register_more_pairs_than_a_server_accepts(caplog: pytest.LogCaptureFixture) -> None:
    many = [f"l{number}" for number in range(100)]
    node = Node("ws://127.0.0.1:1/ws/node", Texts(), languages=many)
    assert len(node._capabilities.text_pairs or ()) == 4096
    assert "text jobs for 4096 of 9900 pairs only" in caplog.text
    with pytest.raises(ValueError, match="more than 4096 pairs"):
        Capabilities(text_pairs=[("auto", "es")] * 4097)


def test_node_that_promises_recognition_its_handler_does_not_have_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="asr names languages, but the handler has no recogniser"):
        Node("ws://127.0.0.1:1/ws/node", Texts(), Capabilities(["en"], ["es"]))


@ON_BOTH_LOOPS
async def test_a_node_registers_says_it_is_alive_and_answers_a_job(fake: FakeScheduler) -> None:
    async with running(node_of(fake, slots=2, token="t0ken")):
        register = await fake.hears(NodeRegister)
        assert register.token == "t0ken"
        assert register.advanced_features == ["job_ack", "resume", "reattempt", "drain", "slots:2"]
        assert (await fake.hears(NodeHeartbeat)).node_id == fake.node_id
        fake.assigns(7)
        result = await fake.hears(JobResult)
        assert result.success
        assert (result.job_id, result.text_asr, result.text_translated) == ("job-7", "utterance 7", "dicho")
        assert [type(message) for message in fake.received] == [
            NodeRegister,
            NodeHeartbeat,
            JobAck,
            JobStarted,
            NodePartial,
            JobResult,
        ]
        assert all(message.node_id == fake.node_id for message in fake.received[1:])  # type: ignore[attr-defined]


async def test_a_node_logs_one_line_for_each_step_of_its_life(
    fake: FakeScheduler, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "dragoman.node")

    node = Node(f"{fake.url}?token=s3cret", translate, languages=["en", "es"], slots=2, timing=QUICK)
    async with running(node):
        fake.refuses_with = HTTPStatus.SERVICE_UNAVAILABLE
        await wait_until(lambda: fake.refusals >= 1)
        fake.refuses_with = None
        await fake.hears(NodeHeartbeat)
        fake.assigns(7)
        await fake.hears(JobResult)
        fake.closes(1001, b"going away")
        await fake.hears(NodeHeartbeat)
        said = [record.getMessage() for record in caplog.records]
        url = fake.url
        assert said[0] == f"connecting to {url}"
        assert said[1].startswith(f"not connected to {url}: HTTP 503; trying again in ")
        registered = said.index(f"registered at {url} as {fake.node_id}: en, es → en, es; 2 slots")
        assert said[registered + 1].startswith("job-7 done: utterance 7 of s-1, en → es, ")
        assert said[registered + 2].startswith(f"lost the connection to {url}: 1001 going away; trying again in ")
        assert said[registered + 3] == f"connecting to {url}"
        assert "s3cret" not in caplog.text


async def test_a_node_logs_why_the_server_refused_it(fake: FakeScheduler, caplog: pytest.LogCaptureFixture) -> None:
    async with running(node_of(fake)) as task:
        await fake.hears(NodeHeartbeat)
        fake.closes(Close.UNAUTHORIZED, b"the token has expired")
        with pytest.raises(NodeRefused):
            await task

    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.getMessage().endswith(": the server refused this node (4501): the token has expired")


@pytest.mark.parametrize("outcome", [None, ModelNotAvailable("nmt", "2", "gone")])
async def test_a_job_without_a_translation_is_one_line_that_says_why(
    fake: FakeScheduler, outcome: ModelNotAvailable | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "dragoman.node")

    async def handler(job: Job) -> Result | None:
        if outcome is not None:
            raise outcome
        return None

    async with running(node_of(fake, handler)):
        await fake.hears(NodeHeartbeat)
        fake.assigns(7)
        await fake.hears(JobResult)

    [line] = [record.getMessage() for record in caplog.records if "job-7" in record.getMessage()]
    assert line.startswith("job-7 done, nothing said:" if outcome is None else "job-7 refused, nmt@2 is not available")


async def test_heartbeats_go_on_and_count_what_runs(fake: FakeScheduler) -> None:
    gate = Gate()
    async with running(node_of(fake, gate, Timing(heartbeat_s=0.01))):
        assert (await fake.hears(NodeHeartbeat)).resource_usage.running_jobs == 0
        fake.assigns(1)
        await fake.hears(NodeHeartbeat, lambda beat: beat.resource_usage.running_jobs == 1)
        gate.open.set()
        await fake.hears(JobResult)
        await fake.hears(NodeHeartbeat, lambda beat: beat.resource_usage.running_jobs == 0)


async def test_a_node_claims_the_id_it_was_given_when_it_comes_back(fake: FakeScheduler) -> None:
    node = node_of(fake)
    async with running(node):
        assert (await fake.hears(NodeRegister)).node_id is None
        await fake.hears(NodeHeartbeat)
        assert node.node_id == fake.node_id
        fake.drops()
        assert (await fake.hears(NodeRegister)).node_id == fake.node_id


async def test_node_registers_with_the_id_it_was_given(fake: FakeScheduler) -> None:
    async with running(node_of(fake, node_id="node-mine")):
        assert (await fake.hears(NodeRegister)).node_id == "node-mine"


def test_node_takes_either_capabilities_or_the_short_form() -> None:
    with pytest.raises(ValueError, match="give either capabilities, or languages and slots"):
        Node("ws://127.0.0.1:1/ws/node", translate, Capabilities(["en"]), languages=["en"])


async def test_node_reports_its_events(fake: FakeScheduler) -> None:
    events: list[NodeEvent] = []
    fake.refuses_with = HTTPStatus.SERVICE_UNAVAILABLE
    async with running(node_of(fake, Gate(), node_id="node-mine", on_event=events.append)):
        await wait_until(lambda: events == [ConnectFailed(fake.url, "HTTP 503")])
        fake.refuses_with = None
        await fake.hears(NodeHeartbeat)
        assigned = fake.assigns(1)
        await fake.hears(JobStarted)
        fake.says(JobCancel("job-1"))
        await wait_until(lambda: Cancelled("job-1") in events)
    seen = [event for event in events if not isinstance(event, ConnectFailed)]
    ours = Registered("node-mine", fake.url), Assigned(assigned), Cancelled("job-1"), Disconnected(fake.url)
    assert seen == list(ours)


async def test_a_node_waits_for_a_server_that_is_not_there_yet(fake: FakeScheduler) -> None:
    await fake.close()
    events: list[NodeEvent] = []
    node = node_of(fake, on_event=events.append)
    async with running(node):
        await wait_until(lambda: failed(events) >= 2)
        await fake.listen()
        await fake.hears(NodeHeartbeat)


async def test_a_node_with_two_servers_goes_to_the_one_that_lives(fake: FakeScheduler) -> None:
    node = Node(["ws://127.0.0.1:1/ws/node", fake.url], translate, languages=["en"], timing=QUICK)
    async with running(node):
        await fake.hears(NodeHeartbeat)


async def test_a_server_that_does_not_answer_the_registration_is_left(fake: FakeScheduler) -> None:
    fake.acks = False
    async with running(node_of(fake, timing=Timing(register_s=0.02, backoff_first_s=0.01))):
        await fake.hears(NodeRegister)
        fake.acks = True
        await fake.hears(NodeHeartbeat)
        assert len(fake.connections) >= 2


async def test_a_result_that_finished_while_the_socket_was_down_arrives(fake: FakeScheduler) -> None:
    gate = Gate()
    node = node_of(fake, gate)
    async with running(node):
        await fake.hears(NodeHeartbeat)
        fake.assigns(1)
        await fake.hears(JobStarted)
        await fake.close()
        await wait_until(lambda: node._socket is None)
        gate.open.set()
        await wait_until(lambda: len(node._outbox) == 1)
        await fake.listen()
        result = await fake.hears(JobResult)
        assert result.job_id == "job-1"
        kinds = [type(message) for message in fake.received]
        assert kinds[-3:] == [NodeRegister, NodeHeartbeat, JobResult]


async def test_a_job_goes_on_while_the_socket_is_down(fake: FakeScheduler) -> None:
    gate = Gate()
    async with running(node_of(fake, gate)):
        await fake.hears(NodeHeartbeat)
        fake.assigns(1)
        await fake.hears(JobStarted)
        fake.drops()
        await fake.hears(NodeHeartbeat)
        gate.open.set()
        assert (await fake.hears(JobResult)).job_id == "job-1"
        assert gate.begun == 1


async def test_unconfirmed_result_is_resent(fake: FakeScheduler) -> None:
    fake.answers_pings = False
    async with running(node_of(fake, timing=FORGETFUL)):
        await fake.hears(NodeHeartbeat)
        fake.assigns(1)
        first = await fake.hears(JobResult)
        fake.drops()
        again = await fake.hears(JobResult)
        assert again.job_id == first.job_id


async def test_a_result_that_was_read_is_not_sent_again(fake: FakeScheduler) -> None:
    node = node_of(fake, timing=FORGETFUL)
    async with running(node):
        await fake.hears(NodeHeartbeat)
        fake.assigns(1)
        await fake.hears(JobResult)
        await wait_until(lambda: len(node._outbox) == 0)
        fake.drops()
        await fake.hears(NodeHeartbeat)
        fake.assigns(2)
        assert (await fake.hears(JobResult)).job_id == "job-2"


async def test_a_result_that_was_read_a_moment_ago_is_sent_again_in_case_its_reader_died(fake: FakeScheduler) -> None:
    node = node_of(fake)
    async with running(node):
        await fake.hears(NodeHeartbeat)
        fake.assigns(1)
        await fake.hears(JobResult)
        await wait_until(lambda: node._outbox.all_read)
        fake.drops()
        assert (await fake.hears(JobResult)).job_id == "job-1"


async def test_a_cancelled_job_is_interrupted_and_the_next_one_runs(fake: FakeScheduler) -> None:
    gate = Gate()
    async with running(node_of(fake, gate)):
        await fake.hears(NodeHeartbeat)
        for number in (1, 2, 3):
            fake.assigns(number)
        await fake.hears(JobStarted)
        fake.says(JobCancel("job-1"))
        fake.says(JobCancel("job-2", reason="too late"))
        assert (await fake.hears(JobStarted)).job_id == "job-3"
        gate.open.set()
        assert (await fake.hears(JobResult)).job_id == "job-3"


async def test_node_ignores_messages_it_does_not_understand(fake: FakeScheduler) -> None:
    async with running(node_of(fake)):
        await fake.hears(NodeHeartbeat)
        transport = fake.connections[-1].transport
        assert transport is not None
        for nonsense in (b"", b"{", b'{"type":"from_the_future"}', b'{"type":"job_assign"}', b"\xff"):
            transport.send(WSMsgType.TEXT, nonsense)
        transport.send(WSMsgType.TEXT, b'{"type":"error","code":', fin=False)
        transport.send(WSMsgType.CONTINUATION, b'"X","message":"in two frames"}')
        fake.says(Error("INVALID_MESSAGE", "sorry"))
        fake.says(NodeControl("dance"))
        fake.assigns(1)
        assert (await fake.hears(JobResult)).success


# ---------------------------------------------------------------- leaving


async def test_a_draining_node_finishes_what_it_has_refuses_what_comes_and_leaves(fake: FakeScheduler) -> None:
    gate = Gate()
    node = node_of(fake, gate)
    async with running(node) as over:
        await fake.hears(NodeHeartbeat)
        fake.assigns(1)
        fake.assigns(2)
        await fake.hears(JobStarted)
        node.drain()
        beat = await fake.hears(NodeHeartbeat)
        assert not any(capability.ready for capability in beat.capability_by_type or ())
        fake.assigns(3)
        refused = await fake.hears(JobResult)
        assert refused.job_id == "job-3"
        assert refused.error is not None
        assert refused.error.code == "MODEL_NOT_AVAILABLE"
        assert details(refused.error.details)["reason"] == "draining"
        gate.open.set()
        assert (await fake.hears(JobResult)).job_id == "job-1"
        assert (await fake.hears(JobResult)).job_id == "job-2"
        await over
        assert fake.goodbyes == 1


async def test_a_server_may_ask_a_node_to_drain(fake: FakeScheduler) -> None:
    async with running(node_of(fake)) as over:
        await fake.hears(NodeHeartbeat)
        fake.says(NodeControl("drain", "upgrade"))
        await over


async def test_a_node_does_not_leave_before_its_results_were_read(fake: FakeScheduler) -> None:
    fake.answers_pings = False
    node = node_of(fake)
    async with running(node) as over:
        await fake.hears(NodeHeartbeat)
        fake.assigns(1)
        await fake.hears(JobResult)
        node.drain()
        await fake.hears(NodeHeartbeat)
        assert not over.done()
        fake.answers_pings = True
        fake.drops()
        assert (await fake.hears(JobResult)).job_id == "job-1"
        await over


async def test_a_drain_that_takes_too_long_ends(fake: FakeScheduler) -> None:
    node = node_of(fake, Gate(), Timing(drain_s=0.02))
    async with running(node) as over:
        await fake.hears(NodeHeartbeat)
        fake.assigns(1)
        await fake.hears(JobStarted)
        node.drain()
        await over
        assert not any(isinstance(message, JobResult) for message in fake.received)


async def test_sigterm_drains_and_a_second_one_leaves_at_once(fake: FakeScheduler) -> None:
    node = node_of(fake, Gate())
    over = asyncio.get_running_loop().create_task(node.run(signals=True))
    await fake.hears(NodeHeartbeat)
    fake.assigns(1)
    await fake.hears(JobStarted)
    signal.raise_signal(signal.SIGTERM)
    beat = await fake.hears(NodeHeartbeat)
    assert not any(capability.ready for capability in beat.capability_by_type or ())
    assert not over.done()
    signal.raise_signal(signal.SIGTERM)
    await over


async def test_a_node_that_connects_in_vain_can_be_stopped(fake: FakeScheduler) -> None:
    await fake.close()
    events: list[NodeEvent] = []
    node = node_of(fake, timing=Timing(backoff_first_s=60, backoff_longest_s=60), on_event=events.append)
    async with running(node) as over:
        await wait_until(lambda: failed(events) == 1)
        node.stop()
        await over


async def test_a_node_whose_run_is_cancelled_says_goodbye(fake: FakeScheduler) -> None:
    over = asyncio.get_running_loop().create_task(node_of(fake).run())
    await fake.hears(NodeHeartbeat)
    over.cancel()
    await asyncio.wait({over})
    assert over.cancelled()
    assert fake.goodbyes == 1


async def test_a_node_that_dies_says_nothing(fake: FakeScheduler) -> None:
    node = node_of(fake)
    async with running(node) as over:
        await fake.hears(NodeHeartbeat)
        node.die()
        await over
        await fake.connections[-1].gone.wait()
        assert fake.goodbyes == 0


@pytest.mark.parametrize("code", [Close.UNAUTHORIZED, Close.REPLACED])
async def test_node_does_not_reconnect_after_a_final_close(fake: FakeScheduler, code: Close) -> None:
    async with running(node_of(fake)) as over:
        await fake.hears(NodeHeartbeat)
        fake.closes(code, b"no")
        with pytest.raises(NodeRefused) as refused:
            await over
        assert (refused.value.code, refused.value.reason) == (code, "no")


@pytest.mark.parametrize("code", [Close.SHUTDOWN, Close.SLOW_CONSUMER, 1001, 1011])
async def test_node_reconnects_after_a_temporary_close(fake: FakeScheduler, code: int) -> None:
    async with running(node_of(fake)):
        await fake.hears(NodeHeartbeat)
        fake.closes(code)
        await fake.hears(NodeHeartbeat)


async def test_a_node_that_may_not_even_connect_does_not_try_again(fake: FakeScheduler) -> None:
    fake.refuses_with = HTTPStatus.UNAUTHORIZED
    with pytest.raises(NodeRefused) as refused:
        await node_of(fake).run()
    assert refused.value.code == 401
    assert fake.refusals == 1


async def test_a_server_that_starts_up_is_tried_again(fake: FakeScheduler) -> None:
    fake.refuses_with = HTTPStatus.SERVICE_UNAVAILABLE
    async with running(node_of(fake)):
        await wait_until(lambda: fake.refusals >= 2)
        fake.refuses_with = None
        await fake.hears(NodeHeartbeat)


async def test_serve_is_run_with_a_loop_of_its_own(fake: FakeScheduler) -> None:
    served = asyncio.get_running_loop().run_in_executor(None, node_of(fake).serve)
    await fake.hears(NodeHeartbeat)
    fake.says(NodeControl("drain"))
    await served


SERVES = """
import logging, sys
from dragoman.node import Node
if sys.argv[1:]:
    logging.basicConfig(format="mine: %(message)s", level=logging.INFO)
Node("ws://127.0.0.1:1/ws/node", lambda job: None, languages=["en"]).serve()
"""


@pytest.mark.parametrize("configured", [False, True])
def test_serve_logs_to_stderr_unless_the_program_has_set_up_logging(configured: bool) -> None:
    command = [sys.executable, "-c", SERVES, *(["configured"] if configured else [])]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        process.terminate()
        process.stderr.read()
    assert first.startswith("mine: connecting to") if configured else "INFO    connecting to ws://127.0.0.1:1" in first


async def test_a_url_that_is_none_is_an_error_at_once(fake: FakeScheduler) -> None:
    with pytest.raises(Exception, match="valid URL"):
        await Node("http://127.0.0.1:1/ws/node", translate, languages=["en"]).run()
