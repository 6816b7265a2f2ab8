import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def nothing_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty working directory and no variable of ours, whatever the machine has set."""
    for name in [name for name in os.environ if name.startswith("DRAGOMAN_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
