"""What is said of a measured sweep: its figures, its numbers, and what the full one would take."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from experiments.benchmarks.sweep_setup import FULL_CORRUPTIONS, FULL_IMAGES, FULL_SEEDS, Shape
from experiments.benchmarks.sweep_watch import Watched

PUBLISHED_FEED = 903.0
NUMBERS = (
    *("accuracy", "mean_entropy", "mean_plpd", "selected_entropy", "selected", "forwards", "backwards"),
    *("skipped_steps", "resets", "images", "group_size", "stream_digest", "weights_sha256"),
)
TIMES = ("seconds", "decode_seconds", "started_at", "finished_at")
COLUMNS = ["run_id", "attempt", "method", "corruption", *TIMES, *NUMBERS]
STEPS = ("step", "correct", "mean_entropy", "mean_plpd", "selected")


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs that went side by side: start and end (seconds since the epoch), and of the time between, what the loop
    took, and waiting for images to be decoded; of how many ``corruptions`` they are, and of how many ``images``."""

    method: str
    start: float
    end: float
    loop: float
    waited: float
    corruptions: int = 1
    images: int = 0


def groups_of(rows: list[dict[str, Any]]) -> list[Group]:
    """The groups of a sweep's runs: those that start together, and whose loop took as long, to the last bit."""
    together: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for row in rows:
        together.setdefault((row["started_at"], row["seconds"]), []).append(row)
    return [
        Group(
            method=runs[0]["method"],
            start=_time(start),
            end=max(_time(row["finished_at"]) for row in runs),
            loop=sum(row["seconds"] for row in runs),
            waited=sum(row["decode_seconds"] for row in runs),
            corruptions=len({row["corruption"] for row in runs}),
            images=sum(row["images"] for row in runs),
        )
        for (start, _), runs in sorted(together.items())
    ]


def figures(results: Path, gpus: int, watched: Watched) -> dict[str, Any]:
    """What is printed of one finished sweep, and under ``numbers`` what must be equal everywhere."""
    from orchestrator import open_results

    opened = open_results(str(results), "sweep")
    rows = opened.runs(columns=COLUMNS).to_pylist()
    steps = opened.batches(columns=["run_id", *STEPS]).to_pylist()
    groups = groups_of(rows)
    start, end = groups[0].start, max(group.end for group in groups)
    images = sum(row["images"] for row in rows)
    numbers: dict[str, Any] = {row["run_id"]: {"row": tuple(row[n] for n in NUMBERS), "steps": []} for row in rows}
    for step in sorted(steps, key=lambda s: s["step"]):
        numbers[step["run_id"]]["steps"].append(tuple(step[name] for name in STEPS))
    return {
        "gpus": gpus,
        "runs": len(numbers),
        "rows": len(rows),
        "attempts": sum(row["attempt"] for row in rows),
        "repeated": sum(row["attempt"] > 1 for row in rows),
        "command_seconds": watched.seconds,
        "processor_seconds": watched.processor_seconds,
        "host_cores": watched.host.processor_seconds / watched.seconds / gpus,
        "host_bytes": watched.host.peak_bytes / gpus,
        "window_seconds": end - start,
        "images": images,
        "images_per_second": images / (end - start),
        "gpu_busy": watched.busy_share(start, end) or None,
        **parts(groups, gpus),
        **loops_by_method(groups),
        "committed_at_kill": watched.committed_at_kill if watched.killed else None,
        "killed": watched.killed is not None,
        "numbers": numbers,
    }


def parts(groups: list[Group], gpus: int) -> dict[str, float]:
    """Where the time from the first start to the last end went, in seconds of each of ``gpus``."""
    window = max(group.end for group in groups) - groups[0].start
    loops = sum(group.loop for group in groups) / gpus
    waits = sum(group.waited for group in groups) / gpus
    between = max(0.0, window - loops - waits)
    first = groups[:gpus]
    return {
        "loop_share": loops / window,
        "loop_seconds": loops,
        "first_groups_seconds": first_of_methods(groups) / gpus,
        "first_waits_seconds": sum(group.waited for group in first) / gpus,
        "first_corruptions": sum(group.corruptions for group in first),
        "later_waits_seconds": sum(group.waited for group in groups[gpus:]) / gpus,
        "between_seconds": between,
        "between_a_group": between * gpus / len(groups),
    }


def loops_by_method(groups: list[Group]) -> dict[str, float]:
    """Images/s of each method in the loops of its groups but the first, which compiles (of that, if it is alone)."""
    found = {}
    for method in dict.fromkeys(group.method for group in groups):
        own = [group for group in groups if group.method == method]
        settled = own[1:] or own
        found[f"loops_{method}"] = sum(group.images for group in settled) / sum(group.loop for group in settled)
    return found


def first_of_methods(groups: list[Group]) -> float:
    """Seconds by which the loop of each method's first group, which compiles, took longer than its later ones."""
    extra = 0.0
    for method in {group.method for group in groups}:
        first, *later = (group.loop for group in groups if group.method == method)
        if later:
            extra += max(0.0, first - statistics.median(later))
    return extra


def full_seconds(row: dict[str, Any], shape: Shape) -> float:
    """What the sweep of 50,000 images, 15 corruptions and 3 seeds would take on one GPU, with groups of the same size.

    The command's start and compiling stay. The first group waits for its images, which grow as a run does; those of
    later groups are decoded meanwhile, if there is time enough: all images at the rate of the first ones are the least
    that it can take. Loops, and later waits, grow with all images, what passes between groups with the runs.
    """
    runs, full_runs = shape.corruptions * shape.seeds, FULL_CORRUPTIONS * FULL_SEEDS
    larger, more = FULL_IMAGES / shape.images, full_runs / runs
    once = row["command_seconds"] - row["window_seconds"] + row["first_groups_seconds"]
    loops = row["loop_seconds"] - row["first_groups_seconds"]
    decoding = row["first_waits_seconds"] * larger
    rest = (loops + row["later_waits_seconds"]) * larger * more + row["between_seconds"] * more
    return once + max(decoding + rest, decoding * FULL_CORRUPTIONS / row["first_corruptions"])


def add_ratios(row: dict[str, Any], shape: Shape, baseline: dict[str, float]) -> None:
    """Wall clock of the published way over this sweep's, as measured, and for one GPU scaled to the full one (several
    compile each for itself, which one number does not tell); changes ``row``."""
    runs, full_runs = shape.corruptions * shape.seeds, FULL_CORRUPTIONS * FULL_SEEDS
    if row["gpus"] == 1:
        row["full_seconds"] = full_seconds(row, shape)
    for name, rate in (("measured_feed", baseline["feed"]), ("feed_903", PUBLISHED_FEED)):
        per_image = sum(1 / min(rate, baseline[method]) for method in shape.methods)
        row[f"ratio_{name}"] = per_image * shape.images * runs / row["command_seconds"]
        if "full_seconds" in row:
            row[f"full_ratio_{name}"] = per_image * FULL_IMAGES * full_runs / row["full_seconds"]


def difference(row: dict[str, Any], first: dict[str, Any]) -> str:
    """The first number in which the runs of two places differ, or "" where none does."""
    ours, theirs = row["numbers"], first["numbers"]
    if ours.keys() != theirs.keys():
        return f"{len(ours.keys() ^ theirs.keys())} runs are not in both"
    for run_id, found in ours.items():
        for name, mine, other in zip(NUMBERS, found["row"], theirs[run_id]["row"]):
            if mine != other:
                return f"{run_id} {name} {mine} for {other}"
        if found["steps"] != theirs[run_id]["steps"]:
            return f"{run_id} steps"
    return ""


def print_row(row: dict[str, Any]) -> None:
    """One place's figures in a few lines."""
    busy = " ".join(f"{100 * share:.0f} %" for share in row["gpu_busy"] or ()) or "-"
    print(
        f"{row['place']:26} command {row['command_seconds']:7.1f} s, runs {row['window_seconds']:7.1f} s, "
        f"{row['images_per_second']:8.1f} img/s, loops {100 * row['loop_share']:5.1f} % of it, GPUs busy {busy}; "
        f"{row['rows']} rows of {row['runs']} runs, {row['attempts']} attempts, {row['difference'] or 'numbers equal'}"
    )
    print(
        f"{'':26} first groups longer by {row['first_groups_seconds']:.1f} s, waits for images "
        f"{row['first_waits_seconds']:.1f} s at first, {row['later_waits_seconds']:.1f} s later; "
        f"{row['between_a_group']:.3f} s between groups"
    )
    print(
        f"{'':26} of the host, for each device: {row['host_cores']:.2f} cores in the mean, "
        f"{row['host_bytes'] / 1e9:.1f} GB at most",
        flush=True,
    )
    loops = {name.removeprefix("loops_"): speed for name, speed in row.items() if name.startswith("loops_")}
    print(f"{'':26} loops, img/s: " + ", ".join(f"{name} {speed:,.0f}" for name, speed in loops.items()), flush=True)
    if "ratio_feed_903" in row:
        said = f"x{row['ratio_measured_feed']:.2f} of the published way (x{row['ratio_feed_903']:.2f} of 903 img/s)"
        if "full_seconds" in row:
            said += f"; full: {row['full_seconds']:,.0f} s, x{row['full_ratio_measured_feed']:.2f}"
            said += f" (x{row['full_ratio_feed_903']:.2f} of 903 img/s)"
        print(f"{'':26} {said}", flush=True)
    if row["killed"]:
        print(f"{'':26} a worker was killed at {row['committed_at_kill']} commits: {row['repeated']} runs repeated")


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
