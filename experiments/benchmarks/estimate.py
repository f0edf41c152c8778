"""The cost model: what `plan` foretells for a sweep, and what the sweep then takes.

    python -m experiments.benchmarks.estimate [--spec SPEC] [--first KEY=VALUE ...] [--then KEY=VALUE ...]

A first sweep in a fresh results root leaves speeds behind (``--first`` reduces the spec to it); then the same spec
with ``--then`` is planned, run in this process, and compared: device seconds foretold against the device seconds of
the runs (loop and decoding), and against the time from the first run's start to the last run's end. To reach: within
25 %. On a GPU give a spec whose first part has the group sizes of the second; the digits' streams are short.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

from experiments.benchmarks.record import add_device, heading, parser_for, save

SPEC = Path(__file__).resolve().parents[1] / "quickstart.yaml"
WITHIN = 0.25


def foretell(spec: str, overrides: list[str], results: str) -> dict[str, Any]:
    """The estimate of `deyo-sweep plan --json` for what is left to run."""
    words = ["plan", spec, "--results", results, "--no-preflight", "--json"]
    words += [word for override in overrides for word in ("--set", override)]
    program = f"from orchestrator.cli.main import main; main({words!r})"
    done = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)["estimate"]


def run(spec: Any, results: str) -> None:
    from orchestrator.session import Place, run_spec

    outcome = run_spec(spec, results=results, place=Place(in_process=True))
    if outcome.exit_code:
        raise SystemExit(f"{spec.name}: {len(outcome.failures)} runs failed")


def taken(results: str, name: str, before: set[str]) -> tuple[float, float, set[str]]:
    """Device seconds of the runs that are not in ``before``, seconds from first start to last end, all run ids."""
    from orchestrator import open_results

    columns = ["run_id", "seconds", "decode_seconds", "started_at", "finished_at"]
    rows = open_results(results, name).runs(columns=columns).to_pylist()
    new = [row for row in rows if row["run_id"] not in before]
    device = sum(row["seconds"] + (row["decode_seconds"] or 0) for row in new)
    starts, ends = ([datetime.fromisoformat(row[c]).timestamp() for row in new] for c in ("started_at", "finished_at"))
    return device, max(ends) - min(starts) if new else 0.0, {row["run_id"] for row in rows}


def main() -> None:
    parser = parser_for(__doc__)
    add_device(parser)
    parser.add_argument("--spec", default=str(SPEC))
    parser.add_argument("--first", nargs="*", default=["seeds=[0]"], metavar="KEY=VALUE")
    parser.add_argument("--then", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="for both")
    options = parser.parse_args()
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from orchestrator.spec import load_spec

    common = ["mlflow.enabled=false", *options.set]
    print(heading(options.device), flush=True)
    with tempfile.TemporaryDirectory() as results:
        os.environ.setdefault("DEYO_CACHE", str(Path(results) / "cache"))
        first = load_spec(options.spec, [*common, *options.first])
        run(first, results)
        _, _, before = taken(results, first.name, set())
        then = [*common, *options.then]
        spec = load_spec(options.spec, then)
        estimate = foretell(options.spec, then, results)
        run(spec, results)
        device, wall, _ = taken(results, spec.name, before)
    foretold, runs, unknown = estimate["hours"] * 3600, estimate["runs"], estimate["unknown_runs"]
    row = {
        "spec": Path(options.spec).name,
        "runs": runs,
        "unknown": unknown,
        "foretold_seconds": foretold,
        "device_seconds": device,
        "wall_seconds": wall,
        "over_device": foretold / device,
        "over_wall": foretold / wall,
    }
    print(
        f"{row['spec']}: {runs} runs ({unknown} of unknown speed); foretold {foretold:.1f} s, device {device:.1f} s "
        f"({row['over_device']:.2f}), from first start to last end {wall:.1f} s ({row['over_wall']:.2f}); "
        f"within 25 %: {abs(row['over_wall'] - 1) <= WITHIN}"
    )
    save([row], options.device, options.out)


if __name__ == "__main__":
    main()
