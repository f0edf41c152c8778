"""Published accuracies without adaptation: what a network must give before any other number is worth reading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Anchor:
    """No-adapt on the released ImageNet-C images in %: the mean of the 15 corruptions at severities 5 and 3, and
    contrast alone at severity 5, the corruption by which normalisations tell themselves apart. None: not published."""

    severity_5: float
    contrast: float
    severity_3: float | None = None
    source: str = "the paper"


ANCHORS: Mapping[str, Anchor] = {
    "resnet50-bn": Anchor(severity_5=18.0, severity_3=39.7, contrast=5.4),
    "resnet50-gn": Anchor(severity_5=30.6, severity_3=54.0, contrast=36.3),
    "vit-base-ln": Anchor(severity_5=29.9, severity_3=53.8, contrast=44.0),
    "timm:vit_base_patch16_224.augreg_in21k_ft_in1k": Anchor(severity_5=51.1, contrast=31.9, source="SAR, issue 5"),
    "vit-base-ln+modern": Anchor(severity_5=55.5, contrast=32.6, source="FOA, SPA, MGTTA"),
}
"""By network name (methods.md §3.5). The ViT's normalisation decides its anchor: augreg weights fed ImageNet's
statistics are the paper's protocol (+paper, the default), the same weights fed their own gain 21 points, and augreg2
weights fed their own are the modern protocol (+modern)."""
