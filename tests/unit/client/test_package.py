import subprocess
import sys


def test_client_package_imports_only_connection_and_protocol() -> None:
    script = "import sys, dragoman.client; print(*(name for name in sys.modules if name.startswith('dragoman.')))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[1] for name in done.stdout.split()}
    assert loaded == {"client", "connection", "protocol"}
