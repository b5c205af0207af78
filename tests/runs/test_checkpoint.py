"""All or nothing, checked byte by byte, never pickle."""

import contextlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import coterie
from coterie.runs import checkpoint
from coterie.runs.checkpoint import ARRAYS, MANIFEST, VALUES, CheckpointError

STATE = {
    "step": 3,
    "ratio": 0.1 + 0.2,
    "name": "ü",
    "none": None,
    "flag": True,
    "weights": {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "scalar": np.array(2.5),
        "empty": np.zeros((0, 2)),
    },
    "list": [{"bits": np.array([True, False])}, {"big": np.array([2**63], np.uint64)}],
}


def same(left, right):
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and np.array_equal(left, right)
    return type(left) is type(right) and left == right


@pytest.fixture
def saved(tmp_path):
    checkpoint.save(tmp_path / "step-000000000007", STATE)
    return tmp_path / "step-000000000007"


def test_a_state_comes_back_bit_for_bit(saved):
    assert same(checkpoint.load(saved), STATE)


def test_only_safetensors_and_json_are_written_and_nothing_temporary_stays(saved):
    assert sorted(p.name for p in saved.iterdir()) == sorted([ARRAYS, VALUES, MANIFEST])
    assert [p.name for p in saved.parent.iterdir()] == [saved.name]
    assert json.loads((saved / MANIFEST).read_text()).keys() == {ARRAYS, VALUES}


@pytest.mark.parametrize("name", [ARRAYS, VALUES, MANIFEST])
def test_a_missing_file_is_refused_by_name(saved, name):
    (saved / name).unlink()
    with pytest.raises(CheckpointError, match=f"'step-000000000007': '{name}' is missing"):
        checkpoint.load(saved)


@pytest.mark.parametrize("name", [ARRAYS, VALUES, MANIFEST])
@pytest.mark.parametrize("damage", ["cut", "empty", "altered"])
def test_a_damaged_file_is_refused_by_name(saved, name, damage):
    data = bytearray((saved / name).read_bytes())
    match damage:
        case "cut":
            data = data[:-1]
        case "empty":
            data = bytearray()
        case "altered":
            data[len(data) // 2] ^= 1
    (saved / name).write_bytes(data)
    with pytest.raises(CheckpointError, match="checkpoint 'step-000000000007'"):
        checkpoint.load(saved)


@pytest.mark.parametrize("text", [b"\xff\xfe", b"[1, 2]", b"3", b"{}"])
def test_a_manifest_that_is_none_is_refused(saved, text):
    (saved / MANIFEST).write_bytes(text)
    with pytest.raises(CheckpointError, match="checkpoint 'step-000000000007'"):
        checkpoint.load(saved)


def test_a_file_where_a_checkpoint_should_be_is_refused(tmp_path):
    (tmp_path / "step-1").write_text("")
    with pytest.raises(CheckpointError, match="step-1"):
        checkpoint.load(tmp_path / "step-1")


def test_what_is_neither_array_nor_json_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(CheckpointError, match=r"/a/b: a checkpoint holds arrays.*, not set"):
        checkpoint.save(tmp_path / "step-1", {"a": {"b": {1}}})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("moment", range(8))
def test_a_failure_while_saving_leaves_the_old_one_or_the_whole_new_one(saved, monkeypatch, moment):
    """Whatever system call is the last one to succeed, the name holds a complete checkpoint or none at all."""
    calls = 0

    def counted(function):
        def call(*arguments, **options):
            nonlocal calls
            calls += 1
            if calls > moment:
                raise OSError("the machine went down")
            return function(*arguments, **options)

        return call

    new = saved.with_name("step-000000000008")
    monkeypatch.setattr(checkpoint.os, "fsync", counted(checkpoint.os.fsync))
    monkeypatch.setattr(Path, "rename", counted(Path.rename))
    with contextlib.suppress(OSError):
        checkpoint.save(new, STATE | {"step": 4})
    monkeypatch.undo()
    assert same(checkpoint.load(saved), STATE)
    assert not new.exists() or checkpoint.load(new)["step"] == 4
    assert new.exists() == (moment >= 5)  # three files and their directory are synced before the name changes
    checkpoint.save(new, STATE | {"step": 5})  # a temporary directory in the way is none
    assert checkpoint.load(new)["step"] == 5
    assert not list(saved.parent.glob(".*"))


def test_a_step_that_is_saved_again_is_never_without_a_checkpoint(saved, monkeypatch):
    """To delete the old one takes a while; a kill meanwhile finds the new one complete."""

    def killed(directory, **options):
        next(Path(directory).iterdir()).unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint.shutil, "rmtree", killed)
    with contextlib.suppress(KeyboardInterrupt):
        checkpoint.save(saved, STATE | {"step": 4})
    monkeypatch.undo()
    assert checkpoint.load(saved)["step"] == 4
    checkpoint.save(saved, STATE | {"step": 5})  # what the kill left behind is in nobody's way
    assert checkpoint.load(saved)["step"] == 5
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_nothing_here_reads_or_writes_pickles():
    pickles = re.compile(r"\b(import pickle|from pickle|torch\.save|torch\.load|allow_pickle=True|joblib|dill)\b")
    for file in Path(coterie.__file__).parent.rglob("*.py"):
        if file.name != "ray_actors.py":  # its messages go to processes that it has started, as through a pipe
            assert not pickles.search(file.read_text()), file


def test_the_state_of_an_optimiser_of_pytorch(tmp_path):
    """Its keys are numbers, its betas a tuple, its moments tensors; they come back as such."""
    torch.manual_seed(0)
    net = torch.nn.Linear(2, 1)
    one, other = (torch.optim.Adam(net.parameters(), 0.1) for _ in range(2))
    net(torch.ones(3, 2)).sum().backward()
    one.step()
    checkpoint.save(tmp_path / "saved", {"learner": one.state_dict()})
    found = checkpoint.load(tmp_path / "saved")["learner"]
    assert found["param_groups"] == one.state_dict()["param_groups"]
    assert isinstance(found["param_groups"][0]["betas"], tuple)
    other.load_state_dict(found)
    for number, part in one.state_dict()["state"].items():
        for name, value in part.items():
            assert torch.equal(other.state_dict()["state"][number][name], value)


@pytest.mark.parametrize(
    "value", [{1, 2}, {"a": 1, 2: 3}, object(), np.array([object()], object), torch.zeros(2, dtype=torch.bfloat16)]
)
def test_what_a_checkpoint_cannot_hold_is_named_by_its_path(tmp_path, value):
    with pytest.raises(checkpoint.CheckpointError, match="/learner/deep: "):
        checkpoint.save(tmp_path / "saved", {"learner": {"deep": value}})
    assert not (tmp_path / "saved").exists()
