"""Default settings as data: learning rates and thresholds by network, batch size, benchmark and protocol.

Two protocols (methods.md §1.0, §2.2, §2.3): ``official`` is what the authors' code does, ``paper`` what the
text says. They differ in: the learning rate at batch size 1 (D3) and on biased sets (D2), the adapted subset
(D4), SAR's constants (D5), DeYO's loss normalisation (D1) and BatchNorm statistics of x' (D7). Both filter by
strict inequalities (D6): the paper's equation does, its algorithm differs only for entropies equal to τ.
"""

from __future__ import annotations

from dataclasses import dataclass

from deyo.types import ConfigError, NetworkInfo

PROTOCOLS = ("official", "paper")
BINARY_BIASED = ("colored-mnist", "colored-digits", "waterbirds")
COLORED = ("colored-mnist", "colored-digits")
DOUBLED_AT_BATCH_1 = ("sar", "sar-official", "deyo")


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What default settings depend on."""

    info: NetworkInfo
    batch_size: int
    num_classes: int
    benchmark: str
    scenario: str
    protocol: str = "official"


def learning_rate(method: str, situation: Situation) -> float:
    """The published learning rate (methods.md §1.0; paper, appendix "More Details on Experimental Protocols").

    ResNets: 2.5e-4 from batch size 32 up, else 2.5e-4/64·B·2. ViTs: 1e-3/64·B. At batch size 1 doubled: for
    SAR and DeYO (official), for all (paper). Biased sets: ×5 for all methods (official), for DeYO on
    Waterbirds alone (paper).
    """
    check_protocol(situation.protocol)
    batch, official = situation.batch_size, situation.protocol == "official"
    if situation.info.family == "vit":
        rate = 1e-3 / 64 * batch
    else:
        rate = 2.5e-4 if batch >= 32 else 2.5e-4 / 64 * batch * 2
    if batch == 1 and (method in DOUBLED_AT_BATCH_1 or not official):
        rate *= 2
    if situation.benchmark in BINARY_BIASED:
        rate *= 5 if official or (method == "deyo" and situation.benchmark == "waterbirds") else 1
    return rate


def adapted_subset(method: str, situation: Situation) -> str:
    """ "all" or "lower" norm layers: in the official code EATA uses all, the others SAR's subset (D4)."""
    if situation.protocol == "paper" or method in ("eata", "eta"):
        return "all"
    return "lower"


def plpd_threshold(situation: Situation) -> float:
    """0.5 on biased sets, 0.3 on ImageNet-C in the mild scenario, 0.2 elsewhere (methods.md §2.2)."""
    if situation.benchmark in BINARY_BIASED:
        return 0.5
    return 0.3 if (situation.benchmark, situation.scenario) == ("imagenet-c", "mild") else 0.2


def check_protocol(name: str) -> str:
    """``name`` if it is a protocol; ConfigError otherwise."""
    if name not in PROTOCOLS:
        raise ConfigError(f"protocol {name!r} is unknown: choose one of {', '.join(PROTOCOLS)}")
    return name
