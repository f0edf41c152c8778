"""Published weights: a tag of torchvision or timm, looked up in a folder of yours, in caches, then fetched."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from deyo.benchmarks.info import default_cache
from deyo.networks.definition import LoadedWeights, file_sha256, read_state
from deyo.types import DataError

if TYPE_CHECKING:
    from torch import Tensor, nn

_HASH_IN_NAME = re.compile(r"-([0-9a-f]{8,64})\.(?:pth|pt|bin|safetensors)$")


def weights_folder(folder: Path | None = None) -> Path | None:
    """The folder that is searched for weight files: ``folder``, else the environment's DEYO_WEIGHTS."""
    if folder is not None:
        return Path(folder)
    named = os.environ.get("DEYO_WEIGHTS")
    return Path(named).expanduser() if named else None


@dataclass(frozen=True, kw_only=True)
class HubWeights:
    """Weights published under ``tag`` for the network ``name`` of ``library`` (timm or torchvision)."""

    library: str
    name: str
    tag: str

    def identity(self) -> str:
        separator = "." if self.library == "timm" else "@"
        return f"{self.library}:{self.name}{separator}{self.tag}"

    def load(self, folder: Path | None, cache: Path | None) -> LoadedWeights:
        named = Path(folder) if folder is not None else None
        if named is not None and named.is_file():
            path = named
        else:
            path = self._find(weights_folder(folder)) or self._fetch(folder)
        digest = file_sha256(path)
        state = read_state(path)
        published = _published_hash(path.name)
        if published is not None and not digest.startswith(published):
            raise DataError(
                f"{path} is not what its name says: sha256 {published}... was expected, found {digest[:12]}...; "
                f"delete it and fetch it again"
            )
        cleaned = self._as_timm_names_it(state) if self.library == "timm" else state
        if cleaned is not None and published is None:
            _check_first_seen(self.identity(), path, digest, (Path(cache) if cache else default_cache()) / "weights")
        return LoadedWeights(state=cleaned or state, sha256=digest, source=self.identity())

    def _as_timm_names_it(self, state: dict[str, Tensor]) -> dict[str, Tensor] | None:
        """timm's own clean-up of published state dicts (old key names, resized embeddings); None if they do
        not fit, which ``load_into`` then explains."""
        import timm

        overlay = {"state_dict": state, "custom_load": False}
        full = f"{self.name}.{self.tag}"
        try:
            return timm.create_model(full, pretrained=True, pretrained_cfg_overlay=overlay).state_dict()
        except RuntimeError:
            return None

    def file_names(self) -> list[str]:
        """Names under which the file is looked for in the weights folder, the published one first."""
        own = self.identity().split(":", 1)[1]
        url = self._url()
        published = [url.rsplit("/", 1)[-1]] if url else []
        return [*published, f"{own}.safetensors", f"{own}.pth", f"{own}/model.safetensors"]

    def _url(self) -> str:
        if self.library == "torchvision":
            from torchvision.models import get_model_weights

            return get_model_weights(self.name)[self.tag].url
        from timm.models import get_pretrained_cfg

        config = get_pretrained_cfg(f"{self.name}.{self.tag}")
        return (config.url or "") if config is not None and not config.custom_load else ""

    def _find(self, folder: Path | None) -> Path | None:
        if folder is None:
            return None
        return next((folder / n for n in self.file_names() if (folder / n).is_file()), None)

    def _fetch(self, folder: Path | None) -> Path:
        """The hub's own cache, or a download into it."""
        try:
            return self._fetch_torchvision() if self.library == "torchvision" else self._fetch_timm()
        except DataError:
            raise
        except Exception as error:  # every hub has its own exceptions for "not reachable"
            raise DataError(self._advice(folder, error)) from error

    def _fetch_torchvision(self) -> Path:
        import torch

        url = self._url()
        target = Path(torch.hub.get_dir()) / "checkpoints" / url.rsplit("/", 1)[-1]
        if not target.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(url, str(target), _published_hash(target.name), progress=False)
        return target

    def _fetch_timm(self) -> Path:
        from huggingface_hub import hf_hub_download, try_to_load_from_cache
        from huggingface_hub.errors import EntryNotFoundError
        from timm.models import get_pretrained_cfg

        config = get_pretrained_cfg(f"{self.name}.{self.tag}")
        if config is None or not config.hf_hub_id:
            raise FileNotFoundError(f"timm names no download for {self.identity()}")
        names = [config.hf_hub_filename] if config.hf_hub_filename else ["model.safetensors", "pytorch_model.bin"]
        for name in names:
            cached = try_to_load_from_cache(config.hf_hub_id, name)
            if isinstance(cached, str):
                return Path(cached)
        _check_reachable()
        try:
            return Path(hf_hub_download(config.hf_hub_id, names[0]))
        except EntryNotFoundError:
            return Path(hf_hub_download(config.hf_hub_id, names[-1]))

    def _advice(self, folder: Path | None, error: Exception) -> str:
        names = "\n  ".join(self.file_names())
        place = weights_folder(folder)
        where = f"the folder {place}" if place else "a folder, and set DEYO_WEIGHTS to that folder"
        reason = str(error).splitlines()[0][:160] if str(error) else "no reason given"
        return (
            f"weights of {self.identity()} are not on this machine and no hub could be reached "
            f"({type(error).__name__}: {reason}).\n"
            f"Fetch {self._published_at()} elsewhere and put it into {where}, under any of these names:\n  {names}"
        )

    def _published_at(self) -> str:
        if self.library == "torchvision":
            return self._url()
        from timm.models import get_pretrained_cfg

        config = get_pretrained_cfg(f"{self.name}.{self.tag}")
        return f"https://huggingface.co/{config.hf_hub_id}/resolve/main/model.safetensors"


def _check_reachable() -> None:
    """Fail at once where the hub's name does not even resolve: its client would retry for half a minute."""
    import socket
    from urllib.parse import urlsplit
    from urllib.request import getproxies

    from huggingface_hub.constants import ENDPOINT

    if not getproxies():
        address = urlsplit(ENDPOINT)
        socket.getaddrinfo(address.hostname, address.port or 443)


def _published_hash(file_name: str) -> str | None:
    match = _HASH_IN_NAME.search(file_name)
    return match[1] if match else None


def _check_first_seen(tag: str, path: Path, digest: str, folder: Path) -> None:
    """A tag must mean the same bytes for ever, and tags have been re-uploaded: remember the sha256 of the first
    file that fitted, for each file format, and refuse another one later."""
    slug = re.sub(r"[^A-Za-z0-9._-]", "_", tag)
    note = folder / f"{slug}{path.suffix}.sha256"
    if note.is_file():
        first = note.read_text().strip()
        if first and first != digest:
            raise DataError(
                f"the weights of {tag} have changed: sha256 {first[:12]}... was loaded before, {path} now has "
                f"{digest[:12]}.... Results of the two must not be mixed; to accept the new ones delete {note}"
            )
        return
    folder.mkdir(parents=True, exist_ok=True)
    temporary = note.with_name(f"{note.name}.{os.getpid()}")
    temporary.write_text(digest + "\n")
    temporary.replace(note)


def load_into(module: nn.Module, loaded: LoadedWeights, what: str) -> None:
    """Load a state dict strictly. Raises ``DataError`` naming the first keys that do not fit."""
    own = module.state_dict()
    state = {k: v for k, v in loaded.state.items() if k in own or not k.endswith("num_batches_tracked")}
    for key, value in own.items():  # checkpoints older than PyTorch 0.4.1 lack this counter
        if key.endswith("num_batches_tracked") and key not in state:
            state[key] = value
    missing = [k for k in own if k not in state]
    surplus = [k for k in state if k not in own]
    shapes = [k for k in own if k in state and own[k].shape != state[k].shape]
    if missing or surplus or shapes:
        parts = [
            f"{label} {', '.join(keys[:4])}{' ...' if len(keys) > 4 else ''} ({len(keys)})"
            for label, keys in (("missing", missing), ("not expected", surplus), ("of another shape", shapes))
            if keys
        ]
        raise DataError(f"the weights {loaded.source} do not fit {what}: {'; '.join(parts)}")
    module.load_state_dict(state)
