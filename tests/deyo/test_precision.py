"""What a profile switches, for which images, and that everything is put back."""

from __future__ import annotations

import pytest
import torch
from parity_cases import network_for, rgb

from deyo.methods import create_method, settings_class
from deyo.precision import numerics
from deyo.types import MethodContext


def flags() -> tuple[bool, bool]:
    return torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32


@pytest.mark.parametrize(
    ("profile", "side", "allowed"),
    [("float32", 224, False), ("tf32", 224, True), ("tf32", 64, True), ("tf32", 32, False), ("bf16", 32, True)],
)
def test_small_images_are_computed_in_full_float32(profile: str, side: int, allowed: bool) -> None:
    before = flags()
    with numerics(profile, side=side):
        assert flags() == (allowed, allowed)
    assert flags() == before


@pytest.mark.parametrize("own", [False, True])
def test_plain_float32_is_deterministic_and_a_users_own_choice_stays(
    own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", own)
    for profile, side, plain in (("float32", 224, True), ("tf32", 32, True), ("tf32", 224, False)):
        with numerics(profile, side=side):
            assert torch.backends.cudnn.deterministic is (plain or own)
        assert torch.backends.cudnn.deterministic is own


@pytest.mark.parametrize("name", ["tent", "memo"])
def test_a_step_goes_by_the_size_of_its_images(name: str) -> None:
    network, pixels, _ = network_for("network_gn")
    seen = []
    hook = network.module.register_forward_pre_hook(lambda *_: seen.append(flags()))
    context = MethodContext(network=network, seeds=[0], batch_size=2, precision="tf32")
    method = create_method(name, context, [settings_class(name)(learning_rate=0.01)])  # of a copy, the hook with it
    hook.remove()
    small = rgb(pixels.reshape(-1, 32, 32)[:2])
    method.step(small)
    assert set(seen) == {(False, False)}
    seen.clear()
    method.step(small.repeat(1, 1, 1, 2, 2))
    assert set(seen) == {(True, True)}
