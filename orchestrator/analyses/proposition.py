"""``proposition``: Proposition 1 on synthetic factors; needs neither images nor a network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deyo.analysis import proposition, to_plain
from deyo.protocols import Situation
from deyo.settings import Bounded, setting
from orchestrator.analyses.base import Findings, Subject


@dataclass(frozen=True, kw_only=True)
class PropositionSettings(Bounded):
    """The synthetic world, and adaptation in it (``deyo.analysis.proposition``)."""

    samples: int = setting(500, doc="samples of the source and of the target world", at_least=4)
    width: int = setting(4, doc="factors in each of the four blocks", at_least=1)
    strength: float = setting(0.8, doc="how far the classes' mean factors lie apart", above=0, at_most=1)
    steps: int = setting(50, doc="steps of adaptation", at_least=1)
    rate: float = setting(0.5, doc="step size of adaptation", at_least=0)


class Proposition:
    """What one step on each sample does to the gap between the classes, and where adaptation on three choices leads."""

    Settings = PropositionSettings

    @classmethod
    def defaults(cls, situation: Situation) -> Mapping[str, Any]:
        return {}

    @staticmethod
    def run(subject: Subject) -> Findings:
        asked: PropositionSettings = subject.settings
        found = proposition.run_experiment(
            seed=subject.config.seed,
            samples=asked.samples,
            width=asked.width,
            strength=asked.strength,
            steps=asked.steps,
            rate=asked.rate,
        )
        return Findings(picture=_rounded(to_plain(found)))


def _rounded(value: Any) -> Any:
    """Floats to 6 significant digits: the picture and the table need no more. Signs are kept."""
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
