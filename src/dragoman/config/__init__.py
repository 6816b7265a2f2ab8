"""Settings: one frozen, typed tree, loaded once at start.

`load` merges file, environment and flags and raises `ConfigError` with every problem it found. Nothing below this
package reads the environment or a file for a setting. It imports nothing else of Dragoman.
"""

from dragoman.config.display import masked, masked_url
from dragoman.config.errors import ConfigError
from dragoman.config.load import Loaded, load, load_with_sources
from dragoman.config.schema import (
    Archive,
    Chat,
    Config,
    Embedded,
    Log,
    NodeSnapshot,
    Phase2,
    Redis,
    Release,
    Scheduler,
    Security,
    Server,
    Speech,
    TwoPhase,
)
from dragoman.config.sources import Source

__all__ = [
    "Archive",
    "Chat",
    "Config",
    "ConfigError",
    "Embedded",
    "Loaded",
    "Log",
    "NodeSnapshot",
    "Phase2",
    "Redis",
    "Release",
    "Scheduler",
    "Security",
    "Server",
    "Source",
    "Speech",
    "TwoPhase",
    "load",
    "load_with_sources",
    "masked",
    "masked_url",
]
