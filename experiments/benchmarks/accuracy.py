"""Accuracies of the profiles: the default (tf32) and bf16 against plain float32, on the same runs.

    python -m experiments.benchmarks.accuracy --data FOLDER     # ColoredMNIST and CIFAR-10 (JPEG copies) as well
    python -m experiments.benchmarks.accuracy                   # the bundled digits alone

FOLDER holds ``mnist``, ``cifar10_jpeg`` and ``weights``. Each set of runs is a sweep, run once for each profile in
this process: ``float32`` without graphs and compilation, the others as a sweep does them. Images of these sets are so
small that the default profile computes in float32 too, with sums in another order: its differences are what rounding
alone does to methods that select samples and feed on their own steps. Printed for each set and method: the mean
accuracy under float32, and the difference of the others from it in points: mean over the runs, standard error of that
mean, and the largest of one run. To reach: the default profile's mean within 0.1.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import stdev
from typing import Any
from unittest.mock import patch

from deyo.corruptions import CORRUPTIONS
from deyo.corruptions.photographs import PHOTOGRAPHIC, frost_folder
from experiments.benchmarks.record import add_device, data_environment, heading, parser_for, save

METHODS = ["no-adapt", "tent", "eata", "sar", "deyo"]
PROFILES = ("float32", "tf32", "bf16")
WITHIN = 0.1
BN = "file:cifar10_resnet20-12fca82f.safetensors@cifar-resnet20"
GN = "file:cifar10_resnet26_gn_memo.safetensors@cifar-resnet26-gn"


def sets(gpu: bool, corruptions: list[str]) -> dict[str, dict[str, Any]]:
    """Name -> the part of a spec that says which runs."""
    mild = {"benchmark": "digits-c", "corruptions": corruptions, "models": ["small-resnet-bn", "small-resnet-gn"]}
    cifar = {"benchmark": "cifar10-jpeg", "corruptions": corruptions, "methods": METHODS}
    eata = {"eata": {"redundancy_margin": 0.4, "fisher_size": 500}}
    rate = {name: {"learning_rate": 0.01} for name in ("tent", "eata", "sar", "deyo")}
    return {
        "digits": {"runs": [{**mild, "methods": METHODS}], "settings": rate},
        "colored-mnist": {
            "seeds": [0],
            "runs": [
                {
                    "benchmark": "colored-mnist",
                    "scenario": "biased",
                    "models": ["resnet18-bn" if gpu else "small-resnet-bn+steps=20"],
                    "methods": METHODS,
                }
            ],
        },
        "cifar-bn": {"runs": [{**cifar, "scenario": "mild", "models": [BN]}], "settings": eata},
        "cifar-gn": {"runs": [{**cifar, "scenario": "label-shift", "models": [GN]}], "settings": eata},
    }


def accuracies(
    name: str, body: dict[str, Any], profile: str, options: argparse.Namespace, results: Path
) -> dict[Any, dict[str, Any]]:
    """The rows of one set under one profile, by what tells its runs apart."""
    import json

    from deyo import fast, kept
    from orchestrator import open_results
    from orchestrator.session import Place, run_spec
    from orchestrator.spec import parse_spec

    spec = {
        "seeds": list(range(options.seeds)),
        "pretrain_seeds": list(range(options.networks)),
        **body,
        "name": f"{name}-{profile}",
        "precision": profile,
    }
    spec |= {"mlflow": {"enabled": False}, "resources": {"group_size": options.group_size}}
    if options.max_images:
        spec["max_images"] = options.max_images
    with ExitStack() as plain:
        for module in (fast, kept) if profile == "float32" else ():
            plain.enter_context(patch.object(module, "can_accelerate", lambda method: False))
        outcome = run_spec(parse_spec(json.dumps(spec)), results=str(results), place=Place(in_process=True))
    if outcome.exit_code:
        raise SystemExit(f"{name}, {profile}: {outcome.message} {next(iter(outcome.failures.values()), '')}")
    columns = ["model", "corruption", "scenario", "seed", "pretrain_seed", "method", "accuracy", "weights_sha256"]
    rows = open_results(str(results), spec["name"]).runs(columns=columns).to_pylist()
    return {tuple(row[column] for column in columns[:6]): row for row in rows}


def compare(name: str, found: dict[str, dict[Any, dict[str, Any]]]) -> list[dict[str, Any]]:
    """One row a method: mean accuracy under float32 (%), differences of the other profiles in points."""
    plain, rows = found["float32"], []
    for method in dict.fromkeys(key[-1] for key in plain):
        keys = [key for key in plain if key[-1] == method]
        row: dict[str, Any] = {"set": name, "method": method, "runs": len(keys)}
        row["float32"] = 100 * sum(plain[k]["accuracy"] for k in keys) / len(keys)
        for profile, other in found.items():
            if profile != "float32":
                assert all(other[k]["weights_sha256"] == plain[k]["weights_sha256"] for k in keys)
                apart = [100 * (other[k]["accuracy"] - plain[k]["accuracy"]) for k in keys]
                row[f"{profile}_mean"] = sum(apart) / len(apart)
                row[f"{profile}_error"] = stdev(apart) / len(apart) ** 0.5 if len(apart) > 1 else None
                row[f"{profile}_largest"] = max(apart, key=abs)
        rows.append(row)
    return rows


def difference(row: dict[str, Any], profile: str) -> str:
    """How a profile's accuracies of one method differ from float32's, for people."""
    error = row[f"{profile}_error"]
    spread = "" if error is None else f" ±{error:.3f}"
    return f"{row[f'{profile}_mean']:+7.3f}{spread} ({row[f'{profile}_largest']:+.2f})"


def spread(count: int) -> list[str]:
    """``count`` of the 15 corruptions: noise, blur and contrast first."""
    first = ["gaussian_noise", "defocus_blur", "contrast"]
    return [*first, *(name for name in CORRUPTIONS if name not in first)][:count]


def main() -> None:
    parser = parser_for(__doc__)
    add_device(parser)
    parser.add_argument("--sets", help="of digits, colored-mnist, cifar-bn, cifar-gn (default: all with data)")
    parser.add_argument("--data", default=os.environ.get("DEYO_TEST_DATA"), help="folder of the real data")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--networks", type=int, default=1, help="seeds of pretraining")
    parser.add_argument("--corruptions", type=int, default=3, help="how many, of digits and cifar")
    parser.add_argument("--max-images", type=int, help="cut each run's stream (default: whole on a GPU, 1000 on a CPU)")
    parser.add_argument("--group-size", type=int, default=1)
    options = parser.parse_args()
    gpu = options.device == "cuda"
    if not gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        options.max_images = options.max_images or 1000
    if options.data:
        os.environ |= data_environment(options.data)
    real = ["colored-mnist", "cifar-bn", "cifar-gn"] if options.data else []
    chosen = options.sets.split(",") if options.sets else ["digits", *real]
    if PHOTOGRAPHIC in spread(options.corruptions) and set(chosen) != {"colored-mnist"}:
        frost_folder()  # now, and not after the other corruptions
    print(heading(options.device), flush=True)
    print(
        f"{'set':14} {'method':9} {'runs':>4} {'float32 %':>10}  points, mean ± its error (largest), of", *PROFILES[1:]
    )
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("DEYO_CACHE", str(Path(folder) / "cache"))
        for name in chosen:
            body = sets(gpu, spread(options.corruptions))[name]
            found = {profile: accuracies(name, body, profile, options, Path(folder)) for profile in PROFILES}
            for row in compare(name, found):
                rows.append(row)
                apart = "   ".join(difference(row, profile) for profile in PROFILES[1:])
                print(f"{name:14} {row['method']:9} {row['runs']:4} {row['float32']:10.2f}  {apart}", flush=True)
            save(rows, options.device, options.out)
    missed = [f"{row['set']} {row['method']}" for row in rows if abs(row["tf32_mean"]) > WITHIN]
    print(f"default profile within {WITHIN} points of float32: {'all' if not missed else 'not ' + ', '.join(missed)}")


if __name__ == "__main__":
    main()
