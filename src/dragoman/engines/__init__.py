"""Engines for a node: one recognises, one translates, one speaks. Each of the three may be replaced.

    from dragoman.engines import Pipeline, Sound

    Node(url, Pipeline(recognise, translate, synthesise), Capabilities(["en"], ["es"], ["es"])).serve()

The three are functions, plain or async: see `dragoman.engines.engine`. Each engine that comes with Dragoman is a
module, and imports what it needs only when it is opened. `dragoman.node` connects to the server.
"""

from dragoman.engines.engine import EngineFailed, EngineTimeout, Hints, Missing, Recognised, Translated, hints
from dragoman.engines.pipeline import Pipeline
from dragoman.engines.sound import Sound

__all__ = [
    "EngineFailed",
    "EngineTimeout",
    "Hints",
    "Missing",
    "Pipeline",
    "Recognised",
    "Sound",
    "Translated",
    "hints",
]
