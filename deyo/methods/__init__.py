"""Methods by name: the project's own, and those that installed packages announce as ``deyo.methods``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deyo import protocols, settings
from deyo.registry import Registry
from deyo.types import Method, MethodContext, NetworkInfo

_REGISTRY = Registry(
    "method",
    "deyo.methods",
    {
        "no-adapt": "deyo.methods.no_adapt:NoAdapt",
        "bn-adapt": "deyo.methods.no_adapt:BNAdapt",
        "tent": "deyo.methods.tent:Tent",
        "eata": "deyo.methods.eata:EATA",
        "eta": "deyo.methods.eata:ETA",
        "sar": "deyo.methods.sar:SAR",
        "sar-official": "deyo.methods.sar:SAROfficial",
        "memo": "deyo.methods.memo:MEMO",
        "sentry": "deyo.methods.sentry:SENTRY",
        "deyo": "deyo.methods.deyo:DeYO",
    },
)


def method_names() -> list[str]:
    """All names that ``create_method`` takes."""
    return _REGISTRY.names()


def method_class(name: str) -> type:
    """The class behind a name. Raises ConfigError with the nearest names if there is none."""
    return _REGISTRY.load(name)


def method_lockstep(name: str) -> bool:
    """Whether the method is written over R runs (else it is built with R = 1 only)."""
    return bool(getattr(method_class(name), "lockstep", False))


def settings_class(name: str) -> type:
    """The method's frozen settings dataclass."""
    return method_class(name).Settings


def resolve_settings(
    method: str,
    overrides: Mapping[str, Any],
    *,
    info: NetworkInfo,
    batch_size: int,
    num_classes: int,
    benchmark: str,
    scenario: str,
    protocol: str = "official",
) -> Any:
    """The settings with which ``method`` runs here: defaults of the protocol, then ``overrides``.

    Raises ConfigError for unknown names, wrong types and impossible values.
    """
    protocols.check_protocol(protocol)
    cls = method_class(method)
    situation = protocols.Situation(
        info=info,
        batch_size=batch_size,
        num_classes=num_classes,
        benchmark=benchmark,
        scenario=scenario,
        protocol=protocol,
    )
    defaults = cls.defaults(situation) if hasattr(cls, "defaults") else {}
    return settings.build(cls.Settings, {**defaults, **overrides}, where=method)


def settings_to_json(values: Any) -> dict[str, Any]:
    """All fields of a settings object as JSON values."""
    return settings.to_json(values)


def settings_from_json(method: str, values: Mapping[str, Any]) -> Any:
    """The settings object that ``settings_to_json`` described."""
    return settings.build(settings_class(method), values, where=method)


def create_method(name: str, context: MethodContext, settings: Sequence[Any]) -> Method:
    """R = len(settings) runs of a method, ready to step. See ``MethodContext``."""
    return method_class(name)(context, settings)
