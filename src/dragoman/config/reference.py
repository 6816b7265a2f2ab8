"""Settings for readers: the values in effect with secrets masked, and the reference that is made from the types.

`dragoman config doc` prints docs/reference/configuration.md, limits.md and config.example.toml; tests keep the files
equal to it.
"""

import json
import re
import textwrap
from collections.abc import Iterator

from dragoman.config.catalog import MOVED, RETIRED, SECTIONS, SETTINGS, Setting, plain
from dragoman.config.checks import INBOX_ENTRY_BYTES, ORDER, value_at
from dragoman.config.schema import Config
from dragoman.config.secrets import SECRET_BYTES

_INTRODUCTION = """\
# Configuration

<!-- Made by `dragoman config doc`; edit the settings in `src/dragoman/config/schema*.py` instead. -->

Every setting has a default. Settings come from three sources; the later one wins:

1. a TOML file: `--config FILE`, or `$DRAGOMAN_CONFIG`, or `config.toml` in the working directory;
2. the environment: `DRAGOMAN_`, the section, two underscores, the name, all in capitals, as in
   `DRAGOMAN_SCHEDULER__PHASE2__REDIS__URL`. Lists are separated by commas or written as JSON. A variable that is empty
   sets an empty string or list, and for any other kind counts as not set;
3. the command line: `--set speech.pause_ms=2500` for any setting, and the options of a command.

`dragoman config check` checks the settings, `dragoman config show` prints those in effect with their source (secrets
masked). `config.example.toml` lists every setting with its default. An unknown name is an error that suggests the
nearest one.

Names end in their unit: `_ms` milliseconds (whole numbers), `_s` and `_seconds` seconds (fractions allowed), `_bytes`
bytes.
"""

_LIMITS_INTRODUCTION = """\
# Limits

<!-- Made by `dragoman config doc --limits`; edit the settings in `src/dragoman/config/schema*.py` instead. -->

How much one client, name, address or connection may use, what it gets when it reaches the limit, and which metric
counts that. Most limits are settings of the section `limits`; a few have a fixed name in another section.

- A principal is the tenant and the subject of a token. Clients without a token share one principal, so only their
  address counts.
- The address of a client behind a proxy is the real one if the proxy is in `server.trusted_proxies`
  ([addresses behind proxies](../guides/secure.md#addresses-behind-proxies)). Loopback has no limit per address.
- Each field of a message has a bound as well; a message beyond it is refused as invalid.
- The decisions are made by pure objects in `src/dragoman/domain/limits`.
"""

_LIMITS_HEAD = """\
| setting | what | per whom | default | answer | metric |
|---|---|---|---|---|---|
"""

_EXAMPLE_HEADER = """\
# Every setting of Dragoman with its default. Copy what you change; every other setting keeps its default.
# Made by `dragoman config doc --example`. The reference is docs/reference/configuration.md.
"""


def markdown() -> str:
    sections = (_section_markdown(name) for name in SECTIONS if _settings_of(name))
    return "\n".join([_INTRODUCTION, *sections, _agreements(), _moved(), _retired()])


def limits_markdown() -> str:
    """docs/reference/limits.md."""
    rows = "".join(
        f"| `{setting.key}` | {setting.description} | {limit.per} | {toml_value(setting.default)} | {limit.answer} "
        f"| `{limit.metric}` |\n"
        for setting in SETTINGS.values()
        if (limit := setting.limit)
    )
    return f"{_LIMITS_INTRODUCTION}\n{_LIMITS_HEAD}{rows}"


def example() -> str:
    return "\n".join([_EXAMPLE_HEADER, *(_section_toml(name) for name in SECTIONS if _settings_of(name))])


def toml_value(value: object) -> str:
    """As it would be written in the file."""
    if isinstance(value, float):
        return plain(value)
    if isinstance(value, tuple | list):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def _settings_of(section: str) -> list[Setting]:
    return [setting for setting in SETTINGS.values() if setting.section == section]


def _section_markdown(name: str) -> str:
    rows = "".join(
        f"| `{setting.name}` | `{toml_value(setting.default)}` | {setting.allowed_briefly} | {setting.description} |\n"
        for setting in _settings_of(name)
    )
    return f"## `[{name}]`\n\n{_summary(name)}\n\n| setting | default | allowed | meaning |\n|---|---|---|---|\n{rows}"


def _section_toml(name: str) -> str:
    return f"# {_summary(name)}\n[{name}]\n" + "".join(
        line for setting in _settings_of(name) for line in _setting_toml(setting)
    )


def _setting_toml(setting: Setting) -> Iterator[str]:
    text = setting.description + (f" ({setting.allowed_briefly})" if setting.allowed_briefly else "")
    yield "\n"
    for line in textwrap.wrap(text, width=98, break_on_hyphens=False, break_long_words=False):
        yield f"# {line}\n"
    yield f"# {setting.name} = {toml_value(setting.default)}\n"


def _summary(section: str) -> str:
    return (SECTIONS[section].__doc__ or "").strip().splitlines()[0]


def _agreements() -> str:
    rows = "".join(f"- `{rule.lower}` {rule.relation} `{rule.upper}`, or {rule.otherwise}.\n" for rule in ORDER)
    return f"""\
## What must agree

If two settings contradict each other, an instance does not start, and the error names both:

{rows}\
- `scheduler.phase2.enabled` must be true exactly if the Redis to join is given: `scheduler.phase2.redis.url` with
  `scheduler.phase2.redis.mode` `single`, or `scheduler.phase2.redis.cluster_urls` with `cluster`, not both.
- An utterance must fit into an inbox entry ({INBOX_ENTRY_BYTES} bytes): `speech.max_buffer_bytes` and the audio of one
  more frame (`limits.frame_bytes`), a third longer in base64.
- `server.port` must not be an admin port; these begin at `server.admin_port`.
- `server.host` and `server.admin_host` must be loopback addresses, unless `security.secret` or
  `security.insecure_allow_anonymous` is set.
- `security.secret` and `security.previous_secret` must have at least {SECRET_BYTES} bytes; a previous one alone is
  refused, and beyond loopback so is the development secret, which signs chat tokens where none is set.
"""


def _moved() -> str:
    rows = "".join(f"| `{old}` | `{new}` |\n" for old, new in MOVED.items())
    return (
        "## Moved names\n\nThe old names still work in every source; `dragoman config check` lists those in use. A "
        f"source that sets both names of a setting is refused.\n\n| old | now |\n|---|---|\n{rows}"
    )


def _retired() -> str:
    rows = "".join(f"- `{name}`: {reason}.\n" for name, reason in RETIRED.items())
    return f"## Retired names\n\nThese are refused in every source.\n\n{rows}"


MASK = "***"
# Up to the last '@', so that a password with an unescaped '@' or '/' is masked whole.
_CREDENTIALS = re.compile(r"^([^:@/]*://)?(?:([^:@/]*):)?.*@", re.DOTALL)
_PASSWORD_PARAMETER = re.compile(r"([?&](?:ssl)?password=)[^&]*", re.IGNORECASE)


def masked(config: Config) -> dict[str, object]:
    """Every setting by its dotted key, in the order of the schema, with secrets masked."""
    return {key: _shown(key, value_at(config, key)) for key in SETTINGS}


def _shown(key: str, value: object) -> object:
    setting = SETTINGS[key]
    if setting.secret and value:
        return MASK
    if setting.url and isinstance(value, tuple):
        return [masked_url(url) for url in value]
    if setting.url:
        return masked_url(str(value))
    return list(value) if isinstance(value, tuple) else value


def masked_url(url: str) -> str:
    """`redis://user:***@host`; a user name alone could be a password and is masked too."""

    def without_password(found: re.Match[str]) -> str:
        scheme, user = found[1] or "", found[2]
        return f"{scheme}{MASK}@" if user is None else f"{scheme}{user}:{MASK}@"

    return _PASSWORD_PARAMETER.sub(rf"\g<1>{MASK}", _CREDENTIALS.sub(without_password, url))
