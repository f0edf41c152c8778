"""The recorded cases of tests/deyo/parity: building the networks, the methods, and injecting permutations."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from timm.models.resnet import BasicBlock, ResNet
from timm.models.vision_transformer import VisionTransformer

from deyo.methods import create_method, settings_class
from deyo.types import MethodContext, Network, NetworkInfo

FOLDER = Path(__file__).parent / "parity"
CASES = sorted(p.stem for p in FOLDER.glob("*.safetensors") if not p.stem.startswith("network_"))

_RENAMED = {
    "lr": "learning_rate",
    "momentum": "momentum",
    "e_margin": "entropy_margin",
    "ent0": "entropy_reference",
    "plpd_threshold": "plpd_threshold",
    "filter_ent": "filter_entropy",
    "filter_plpd": "filter_plpd",
    "reweight_ent": "weight_entropy",
    "reweight_plpd": "weight_plpd",
    "patch_len": "patches",
    "d_margin": "redundancy_margin",
    "fisher_alpha": "fisher_strength",
    "reset_constant": "reset_constant",
    "rho": "sharpness_radius",
    "entropy_ema_decay": "entropy_decay",
    "second_forward": "second_forward",
    "adapted_norms": "adapted",
}
_FLAGS = {"filter_entropy", "filter_plpd", "weight_entropy", "weight_plpd"}


@dataclasses.dataclass
class Case:
    """One recorded case: its settings as recorded, and its tensors as arrays."""

    name: str
    settings: dict[str, Any]
    tensors: dict[str, np.ndarray]


def load_case(name: str) -> Case:
    with safe_open(FOLDER / f"{name}.safetensors", "np") as file:
        settings = json.loads(file.metadata()["case"])
        return Case(name, settings, {key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118


@functools.cache
def network_for(name: str) -> tuple[Network, np.ndarray, np.ndarray]:
    """(network, stream uint8 [8, 32, 32, 32], source uint8 [2, 32, 32, 32]) of a ``network_*`` file."""
    with safe_open(FOLDER / f"{name}.safetensors", "pt") as file:
        arch = json.loads(file.metadata()["arch"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    module = _build(arch)
    weights = {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")}
    module.load_state_dict(weights, strict=True)
    norm = arch.get("norm", "ln")
    info = NetworkInfo(name=name, family="vit" if norm == "ln" else "resnet", norm=norm, num_classes=10, image_size=32)
    network = Network(info=info, module=module.eval(), mean=(0.2,) * 3, std=(0.4,) * 3, num_classes=10, sha256="parity")
    return network, tensors["pixels"].numpy(), tensors["source_pixels"].numpy()


def method_settings(case: Case) -> Any:
    """The project's settings object for a recorded case."""
    recorded = case.settings
    values = {own: recorded[theirs] for theirs, own in _RENAMED.items() if theirs in recorded}
    values |= {flag: bool(values[flag]) for flag in _FLAGS & values.keys()}
    kind = recorded.get("aug_type")
    if kind:
        values["transform"] = {"occ": "occlusion"}.get(kind, kind)
    if recorded["method"] == "eata":
        values.setdefault("fisher_strength", 0.0)
    cls = settings_class(method_name(case))
    known = {f.name for f in dataclasses.fields(cls)}
    assert not (unknown := set(values) - known), unknown
    return cls(**values)


def method_name(case: Case) -> str:
    if case.settings.get("second_forward") == "batch":
        return "sar-official"
    return case.settings["method"]


def rgb(grey: np.ndarray) -> torch.Tensor:
    """uint8 [B, 32, 32] -> [1, B, 3, 32, 32]."""
    return torch.from_numpy(grey).unsqueeze(1).expand(-1, 3, -1, -1).unsqueeze(0)


def batches(case: Case, pixels: np.ndarray) -> list[torch.Tensor]:
    size, steps = case.settings["batch_size"], case.settings["steps"]
    flat = pixels.reshape(-1, 32, 32)
    return [rgb(flat[k * size : (k + 1) * size]) for k in range(steps)]


def build_method(case: Case, *, precision: str = "float64", seeds: tuple[int, ...] = (0,)) -> Any:
    """The method of a case with R = len(seeds) equal runs, its recorded permutations injected."""
    network, _, source = network_for(case.settings["network"])
    context = MethodContext(network=network, seeds=seeds, batch_size=case.settings["batch_size"], precision=precision)
    method = create_method(method_name(case), context, [method_settings(case)] * len(seeds))
    if case.settings.get("fisher_alpha"):
        method.measure_fisher([rgb(batch).expand(len(seeds), -1, -1, -1, -1) for batch in source])
    if "permutation" in case.tensors and case.settings.get("aug_type") != "occ":
        method.draw_indices = lambda *_: recorded_permutation(case, int(method.steps)).expand(len(seeds), -1, -1)
    return method


def recorded_permutation(case: Case, step: int) -> torch.Tensor:
    """int64 [1, B or 1, L]; rows that were not drawn hold the identity."""
    rows = torch.from_numpy(case.tensors["permutation"][step]).long()
    identity = torch.arange(rows.shape[1]).expand_as(rows)
    return torch.where(rows < 0, identity, rows).unsqueeze(0)


def run_case(case: Case) -> tuple[Any, np.ndarray, np.ndarray]:
    """(method after the stream, logits [T, B, C], selected counts [T, 2])."""
    method = build_method(case)
    _, pixels, _ = network_for(case.settings["network"])
    logits, selected = [], []
    for batch in batches(case, pixels):
        logits.append(method.step(batch)[0].numpy())
        selected.append([int(method.report.passed_entropy.sum()), int(method.report.passed_both.sum())])
    return method, np.stack(logits), np.array(selected)


def _build(arch: dict[str, Any]) -> torch.nn.Module:
    if arch["family"] == "timm-vit":
        keys = ("img_size", "patch_size", "embed_dim", "depth", "num_heads", "mlp_ratio", "num_classes")
        return VisionTransformer(**{k: arch[k] for k in keys})
    options = {}
    if arch["norm"] == "gn":
        options["norm_layer"] = lambda channels, **kw: torch.nn.GroupNorm(arch["groups"], channels, **kw)
    return ResNet(BasicBlock, arch["layers"], channels=arch["channels"], num_classes=arch["num_classes"], **options)
