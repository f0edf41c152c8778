"""Decoding in child processes: the same arrays, and what happens when a process goes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
from decode_parts import SHAPE, Part, PartSource
from PIL import Image
from torchvision.transforms import InterpolationMode, functional

from deyo import cache_build
from deyo.benchmarks import decoding, transforms
from deyo.benchmarks.sources import FileSource
from deyo.cache import Recipe, open_images
from deyo.cache_build import CHUNK, fill
from deyo.decode_children import Child, Children
from deyo.types import DataError

COUNT = 3 * CHUNK + 5
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _children_for_few_images(monkeypatch):
    monkeypatch.setattr(cache_build, "CHILD_IMAGES", 1)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """JPEG files of several sizes, one of them cut off."""
    folder, draw = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for k in range(COUNT):
        pixels = draw.integers(0, 256, (20 + k % 5, 20 + k % 3, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{k:04}.jpg")
    whole = (folder / "0200.jpg").read_bytes()
    (folder / "0200.jpg").write_bytes(whole[: len(whole) // 2])
    return folder


def recipe(folder: Path, transform: transforms.Transform | None = None) -> Recipe:
    def source() -> FileSource:
        files = sorted(folder.glob("*.jpg"))
        how = transform or transforms.resize_and_crop(18, 16)
        return FileSource(files, np.arange(len(files)) % 7, 16, how, root=folder)

    return Recipe(name="pictures", config={}, open=source, root=folder)


@pytest.fixture
def read_here(monkeypatch) -> list[str]:
    """Names of the files that this process decodes."""
    names, read = [], decoding.FilePart.read

    def noting(part):
        names.extend(file.name for file in part.files)
        return read(part)

    monkeypatch.setattr(decoding.FilePart, "read", noting)
    return names


def test_children_make_the_same_array(pictures, tmp_path, read_here):
    alone = open_images(recipe(pictures), tmp_path / "alone", workers=1, skip_bad=True)
    assert len(read_here) == COUNT
    read_here.clear()
    together = open_images(recipe(pictures), tmp_path / "together", workers=2, skip_bad=True)
    assert read_here == ["0200.jpg"]  # the unreadable one, for its reason
    assert np.array_equal(alone.pixels, together.pixels)
    assert alone.pixels[:].any(axis=(1, 2, 3)).all()
    assert (together.fingerprint, together.skipped) == (alone.fingerprint, 1)
    metas = [next((tmp_path / name).rglob("meta.json")).read_text() for name in ("alone", "together")]
    assert metas[0] == metas[1]


def test_an_unreadable_file_is_refused_in_the_same_words(pictures, tmp_path):
    words = []
    for workers in (1, 2):
        with pytest.raises(DataError, match=r"--skip-bad.*0200\.jpg") as caught:
            open_images(recipe(pictures), tmp_path / str(workers), workers=workers)
        words.append(str(caught.value))
    assert words[0] == words[1]


def test_a_transform_of_the_users_own_stays_in_this_process(pictures, tmp_path, read_here):
    own = recipe(pictures, lambda image: image.resize((16, 16)))
    images = open_images(own, tmp_path / "cache", workers=2, skip_bad=True)
    assert len(read_here) == len(images) + 1


def test_what_was_read_before_an_end_is_not_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_build, "_FLUSH_SECONDS", 0.01)
    mark, chunks = tmp_path / "mark", []

    def stop(name: str, done: int, total: int) -> None:
        if done:
            mark.touch()
            raise InterruptedError

    source = PartSource(20 * CHUNK, mark, "wait", at=2 * CHUNK)
    how = {"refuse": None, "workers": 2}
    with pytest.raises(InterruptedError):
        fill("x", source, tmp_path, progress=stop, **how)
    first = np.fromfile(tmp_path / "done.bin", dtype=np.uint8)
    assert 0 < first.sum() < 20
    part = source.part
    source.part = lambda indices: (chunks.append(indices[0] // CHUNK), part(indices))[1]
    fill("x", source, tmp_path, progress=None, **how)
    assert sorted(chunks) == np.flatnonzero(first == 0).tolist()
    assert pixels_of(tmp_path).tolist() == (np.arange(20 * CHUNK) % 251).tolist()


def pixels_of(folder: Path) -> np.ndarray:
    return np.load(folder / "pixels.npy")[:, 0, 0, 0]


def decoded(tmp_path: Path, trouble: str) -> PartSource:
    """A source with trouble at its 200th image, after its array was made at ``tmp_path``."""
    source = PartSource(COUNT, tmp_path / "mark", trouble, at=200)
    fill("x", source, tmp_path, refuse=None, workers=2, progress=None)
    return source


def test_a_child_that_is_killed_is_replaced(tmp_path):
    source = decoded(tmp_path, "kill once")
    assert (tmp_path / "mark").exists()
    assert source.read_here == []
    assert np.array_equal(pixels_of(tmp_path), np.arange(COUNT) % 251)


def test_images_that_kill_every_child_are_an_error_that_names_them(tmp_path):
    with pytest.raises(MemoryError, match=r"ended with -9 at image 128 to image 255.*memory"):
        decoded(tmp_path, "kill")


def test_what_else_reading_raises_is_raised_here(tmp_path):
    with pytest.raises(KeyError, match="not what unreadable images raise"):
        decoded(tmp_path, "raise")


@pytest.mark.parametrize("python", ["", "/nowhere/python", "/bin/false"])
def test_where_no_child_can_start_this_process_decodes(tmp_path, monkeypatch, python):
    monkeypatch.setattr(sys, "executable", python)
    source = decoded(tmp_path, "")
    assert sorted(source.read_here) == list(range(COUNT))
    assert np.array_equal(pixels_of(tmp_path), np.arange(COUNT) % 251)


def empty_array(folder: Path) -> Path:
    file = folder / "pixels.npy"
    np.lib.format.open_memmap(file, mode="w+", dtype=np.uint8, shape=(COUNT, *SHAPE)).flush()
    return file


def test_a_child_goes_on_at_ctrl_c_and_ends_when_told(tmp_path):
    child = Child(empty_array(tmp_path), nice=3)
    assert os.getpriority(os.PRIO_PROCESS, child.process.pid) == 3 + os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getsid(child.process.pid) == child.process.pid  # a terminal does not reach it
    os.kill(child.process.pid, signal.SIGINT)
    assert child.read(Part(indices=np.arange(7), mark=tmp_path), 50) == []
    assert pixels_of(tmp_path)[48:58].tolist() == [0, 0, 0, 1, 2, 3, 4, 5, 6, 0]
    child.close()
    assert child.process.returncode is not None


def test_what_a_child_cannot_import_is_read_here(tmp_path, monkeypatch):
    """It ends by itself, of an error; it is not taken for one that was killed."""
    here = types.ModuleType("only_here")
    exec("class Foreign:\n    files = ('a.png',)\n", vars(here))
    monkeypatch.setitem(sys.modules, "only_here", here)
    with Children(empty_array(tmp_path)) as children:
        assert children.read(here.Foreign(), 0) is None
        assert children.read(Part(indices=np.arange(7), mark=tmp_path), 0) is None  # nor is another child started


def test_children_are_gone_when_their_work_is_done(tmp_path):
    with Children(empty_array(tmp_path)) as children:
        assert children.read(Part(indices=np.arange(7), mark=tmp_path), 0) == []
        (child,) = children._all
        assert child.process.poll() is None
    assert child.process.poll() is not None


PROGRAM = """
import sys
print("begun", flush=True)
sys.path.insert(0, {root!r})
from pathlib import Path
from deyo.decode_children import Child
child = Child(Path({file!r}), 0)
loaded = Path("/proc", str(child.process.pid), "maps").read_text()
print(child.process.pid, "libtorch" in loaded, "numpy" in loaded, flush=True)
input()
"""


def test_a_child_needs_neither_the_main_program_nor_torch_and_dies_with_its_parent(tmp_path):
    """The program has no guard, and finds this package by ``sys.path`` alone."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(root=str(ROOT), file=str(empty_array(tmp_path))))
    (tmp_path / "pickle.py").write_text("raise SystemExit('the folder that it was started in is no place of modules')")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-P", str(program)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdin=pipe, stdout=pipe, text=True) as parent:
        assert parent.stdout.readline() == "begun\n"
        pid, torch, numpy = parent.stdout.readline().split()
        assert (torch, numpy) == ("False", "True")
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 30
    while alive(int(pid)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(int(pid))


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie, which waits for whoever adopted it, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_module_that_decodes_loads_no_torch():
    code = (
        "import sys, deyo.decode_child, deyo.benchmarks.decoding; print(sorted(m for m in sys.modules if 'torch' in m))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


SIDES = [(w, h) for w in (1, 5, 6, 7, 8, 9, 30) for h in (2, 6, 7, 8, 31, 100)]


@pytest.mark.parametrize("size", [7, 8])
def test_transforms_are_torchvisions_bit_for_bit(size):
    """Of larger and smaller images, whose missing pixels are black."""
    draw = np.random.default_rng(0)
    for sides in SIDES:
        image = Image.fromarray(draw.integers(1, 256, (*sides[::-1], 3), dtype=np.uint8))
        small = functional.resize(image, 9, InterpolationMode.BILINEAR)
        square = functional.resize(image, [9, 9], InterpolationMode.BILINEAR)
        for own, theirs in [
            (transforms.center_crop(size), functional.center_crop(image, [size, size])),
            (transforms.resize_and_crop(9, size), functional.center_crop(small, [size, size])),
            (transforms.squash_and_crop(9, size), functional.center_crop(square, [size, size])),
            (transforms.squash(size), image.resize((size, size))),
        ]:
            assert np.array_equal(np.asarray(own(image)), np.asarray(theirs)), (own, sides)
            assert transforms.is_own(own)
