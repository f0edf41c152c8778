"""What a process and all below it take of the host, as the sweep's benchmark tells."""

from __future__ import annotations

import subprocess
import sys

from experiments.benchmarks.host_use import HostUse

BYTES = 60_000_000
WORK = f"""
import sys, time
kept = bytearray(b"x" * {BYTES})
while time.process_time() < 0.3: pass
print("worked", flush=True)
sys.stdin.read()
"""
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WORK!r}])"


def test_time_and_memory_of_a_process_below_count_and_stay_when_it_is_gone() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout.readline() == "worked\n"
        use = HostUse()
        use.look(parent.pid)
        parent.stdin.close()
    assert use.processor_seconds >= 0.3
    assert BYTES <= use.peak_bytes < 10 * BYTES
    before = use.processor_seconds, use.peak_bytes
    use.look(parent.pid)
    assert (use.processor_seconds, use.peak_bytes) == before


def test_looks_are_no_sums() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WORK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        process.stdout.readline()
        once, often = HostUse(), HostUse()
        for _ in range(5):
            often.look(process.pid)
        once.look(process.pid)
        process.stdin.close()
    assert often.processor_seconds == once.processor_seconds
    assert often.peak_bytes < 1.5 * once.peak_bytes
