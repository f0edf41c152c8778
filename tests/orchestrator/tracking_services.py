"""Servers for the tests of tracking: MLflow's own, one that only fails, and PostgreSQL. All on loopback."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from orchestrator.tracking.server import free_port, serve


@contextlib.contextmanager
def mlflow_server(folder: Path, database: str, port: int | None = None) -> Iterator[str]:
    """A tracking server on ``database``; its URL."""
    with (
        open(folder / "server.log", "ab") as log,
        serve(database, port=port or free_port(0), artifacts=(folder / "artifacts").as_uri(), log=log) as url,
    ):
        yield url


@contextlib.contextmanager
def failing_server(status: int, body: str = "", delay: float = 0.0) -> Iterator[str]:
    """A server that gives one answer to everything."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            time.sleep(delay)
            with contextlib.suppress(OSError):
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

        do_GET = do_POST = do_PATCH = answer

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def postgres_binaries() -> Path | None:
    """The folder of PostgreSQL's programs: where ``initdb`` is on the PATH, or Debian's newest."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3]))
    return debian[-1].parent if debian else None


@contextlib.contextmanager
def postgres(binaries: Path) -> Iterator[str]:
    """A PostgreSQL server of its own, as a user that is not root; the URI of its one database."""
    folder = Path(tempfile.mkdtemp(prefix="deyo-pg-"))
    user = {"user": "nobody", "extra_groups": []} if os.geteuid() == 0 else {}
    if user:
        shutil.chown(folder, "nobody")
    port, data = free_port(0), folder / "data"
    options = f"-p {port} -h 127.0.0.1 -k {folder} -c fsync=off"

    def call(program: str, *arguments: str) -> None:
        subprocess.run([binaries / program, *arguments], check=True, cwd=folder, stdout=subprocess.DEVNULL, **user)  # type: ignore[call-overload]

    try:
        call("initdb", "-D", str(data), "-U", "mlflow", "-A", "trust", "--no-locale", "-E", "UTF8", "--no-sync")
        call("pg_ctl", "-D", str(data), "-l", str(folder / "log"), "-o", options, "-w", "start")
        try:
            call("createdb", "-h", "127.0.0.1", "-p", str(port), "-U", "mlflow", "mlflow")
            yield f"postgresql://mlflow@127.0.0.1:{port}/mlflow"
        finally:
            call("pg_ctl", "-D", str(data), "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
