"""An engine's catalog made of tables: spec and plan tests that need no torch and no registry."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from deyo.types import ConfigError, NetworkInfo
from orchestrator.catalog import Catalog, Question
from orchestrator.suggest import suggest

CORRUPTIONS = ("gaussian_noise", "shot_noise", "defocus_blur", "contrast", "spatter")

BENCHMARKS = {
    "digits-c": SimpleNamespace(
        name="digits-c",
        num_classes=10,
        corruptions=CORRUPTIONS,
        severities=(1, 2, 3, 4, 5),
        scenarios=("mild", "label-shift", "batch-size-1", "mixed", "continual"),
        default_batch_size=64,
        bundled=True,
        options={"test_share": 0.5},
    ),
    "colored-digits": SimpleNamespace(
        name="colored-digits",
        num_classes=2,
        corruptions=(),
        severities=(),
        scenarios=("biased", "mild"),
        default_batch_size=64,
        bundled=True,
        options={},
    ),
}
NETWORKS = {
    "small-resnet-bn": NetworkInfo(
        name="small-resnet-bn", family="resnet", norm="bn", num_classes=None, image_size=32, trained_on="any"
    ),
    "resnet50-gn": NetworkInfo(name="resnet50-gn", family="resnet", norm="gn", num_classes=1000, image_size=224),
    "file:net.safetensors": NetworkInfo(
        name="file:net.safetensors", family="resnet", norm="gn", num_classes=10, image_size=32
    ),
}
METHODS: dict[str, dict[str, Any]] = {
    "no-adapt": {},
    "tent": {"learning_rate": None},
    "deyo": {"learning_rate": None, "plpd_threshold": 0.2, "patches": 4, "filter_plpd": True},
}


def _look(table: Mapping[str, Any], name: str) -> Any:
    if name not in table:
        raise ConfigError(f"no {name!r}; {suggest(name, table)}")
    return table[name]


class FakeCatalog(Catalog):
    """``weights`` may be changed by a test, as a file of weights would be."""

    def __init__(self, **stamps: Any) -> None:
        super().__init__()
        self.weights: dict[str, str] = {}
        self.engine = {"numerics_version": 1, "code_digest": "c0de", **stamps}
        self.questions = 0

    def benchmark(self, name: str, options: Mapping[str, Any]) -> Any:
        info = _look(BENCHMARKS, name)
        for key in options:
            _look(info.options, key)
        return SimpleNamespace(**{**vars(info), "options": {**info.options, **options}})

    def tuning_corruptions(self) -> tuple[str, ...]:
        return ("spatter",)

    def benchmark_names(self) -> list[str]:
        return list(BENCHMARKS)

    def network(self, name: str) -> NetworkInfo:
        return _look(NETWORKS, name)

    def has_recipe(self, model: str, benchmark: str) -> bool:
        return self.network(model).trained_on is not None

    def weights_id(self, model: str, benchmark: str) -> str:
        return self.weights.get(model, f"weights of {model}")

    def data_id(self, benchmark: str, options: Mapping[str, Any], root: str | None) -> str | None:
        return None

    def scenario_options(self, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
        known = {"imbalance_ratio": 500_000} if name == "label-shift" else {}
        for key in options:
            _look(known, key)
        return {**known, **options}

    def settings(self, question: Question) -> dict[str, Any]:
        return self._once(("settings", *question.key()), lambda: self._resolve(question))

    def _resolve(self, question: Question) -> dict[str, Any]:
        self.questions += 1
        fields = dict(_look(METHODS, question.method))
        for name, value in question.overrides.items():
            _look(fields, name)
            if isinstance(value, str):
                raise ConfigError(f"{question.method}.{name} is {value!r}: write a number")
            fields[name] = value
        if fields.get("learning_rate", 0) is None:
            fields["learning_rate"] = 2.5e-4 if question.batch_size >= 32 else 1.5625e-5
        return fields

    def check_method(self, name: str) -> None:
        _look(METHODS, name)

    def stamps(self) -> dict[str, Any]:
        return self.engine
