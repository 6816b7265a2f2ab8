"""The SDK for compute nodes: a function that translates, and a Node that runs it on the jobs of a server.

    from dragoman.node import Job, Node, Result

    async def translate(job: Job) -> Result | None:
        text = await recognise(job.audio, job.src_lang)
        job.partial(text)
        translated = await translate_text(text, job.tgt_lang)
        return Result(text, translated, await speak(translated, job.tgt_lang))

    Node("ws://127.0.0.1:5010/ws/node", translate, languages=["en", "es"], slots=2).serve()

If nothing was said, return None. If a model is missing on this node, raise ModelNotAvailable: the job goes to another
node. If no node can do the job, raise JobFailed. After any other exception the server tries the job once more, on
another node. The handler may also be a plain function; it then runs in a thread.
"""

from dragoman.node.capabilities import Capabilities
from dragoman.node.job import Job, JobFailed, ModelNotAvailable, Result
from dragoman.node.node import (
    Assigned,
    Cancelled,
    ConnectFailed,
    Disconnected,
    Node,
    NodeEvent,
    NodeRefused,
    Registered,
    Timing,
)
from dragoman.node.preview import PreviewStream
from dragoman.node.sim import SimSettings, run_sim_node

__all__ = [
    "Assigned",
    "Cancelled",
    "Capabilities",
    "ConnectFailed",
    "Disconnected",
    "Job",
    "JobFailed",
    "ModelNotAvailable",
    "Node",
    "NodeEvent",
    "NodeRefused",
    "PreviewStream",
    "Registered",
    "Result",
    "SimSettings",
    "Timing",
    "run_sim_node",
]
