"""Imports: the command line starts quickly, and packages import few libraries."""

import json
import subprocess
import sys

import pytest

from helpers.run import environment

PACKAGES = ("core", "nn", "preferences", "worlds", "lm", "policies", "roles", "algorithms", "testing")
ALSO = (  # of packages that read settings files, what a machine without pydantic needs
    *("training.runner", "training.rollout", "training.evaluate", "runs.checkpoint"),
    *("config.registry", "studies.statistics"),
)
NEED_MORE = {  # module: the blocked package that it needs
    "worlds.adapters.export": "gymnasium",
    "worlds.adapters.actions": "gymnasium",
    "worlds.adapters.frames": "gymnasium",
    "worlds.adapters.export_aec": "gymnasium",
    "worlds.adapters.spaces": "gymnasium",
    "studies.auction.metrics": "omegaconf",  # needs a trained table
    "studies.auction.report": "omegaconf",
    **{f"lm.kernels.{name}": "triton" for name in ("attention", "layers", "log_probs")},  # comes with PyTorch for GPUs
    "lm.learn.engine_kernels": "triton",
}
BLOCKED = [
    *("pydantic", "pydantic_core", "omegaconf", "yaml", "typer", "click", "rich", "matplotlib", "PIL", "gymnasium"),
    *("pettingzoo", "tensorboard", "safetensors", "pygame", "optuna", "sqlalchemy"),
    *("transformers", "gguf", "openai", "xllamacpp", "peft", "triton"),
]
BLOCK = f"""
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED}:
            raise ModuleNotFoundError(f"{{name}} is blocked", name=name)

sys.meta_path.insert(0, Blocker())
"""


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())


ATTEMPT = """
import importlib, json, pkgutil

found = {}
for package in PACKAGES:
    path = importlib.import_module(f"coterie.{package}").__path__
    names = [info.name for info in pkgutil.walk_packages(path, f"coterie.{package}.")]
    for name in names + [f"coterie.{name}" for name in ALSO]:
        try:
            importlib.import_module(name)
            found[name] = None
        except ModuleNotFoundError as error:
            found[name] = error.name
print(json.dumps(found))
"""


@pytest.mark.slow
def test_most_packages_import_with_numpy_numba_and_torch_alone():
    done = python(f"PACKAGES, ALSO = {PACKAGES}, {ALSO}\n" + BLOCK + ATTEMPT)
    assert done.returncode == 0, done.stderr
    missing = json.loads(done.stdout)
    assert len(missing) > 80
    needed = {name.removeprefix("coterie."): blocked for name, blocked in missing.items() if blocked}
    assert needed == NEED_MORE


@pytest.mark.slow
@pytest.mark.parametrize("make", ["gridworld.parallel_env", "gridworld.single_env", "tictactoe.env"])
def test_environments_for_other_libraries_name_the_extra_that_they_need(make):
    done = python(BLOCK + f"import coterie.worlds; coterie.worlds.{make}()")
    assert done.stderr.endswith("'gymnasium' is not installed: pip install 'coterie[worlds]'\n")


def test_the_block_blocks():
    assert python(BLOCK + "import omegaconf").returncode != 0
    assert python(BLOCK + "import coterie.config.schema").returncode != 0


@pytest.mark.parametrize("module", ["coterie", "coterie.cli"])
def test_nothing_heavy_is_imported_before_it_is_needed(module):
    heavy = ["torch", "numpy", "numba", "pydantic", "omegaconf", "matplotlib"]
    done = python(f"import {module}, sys; print([m for m in {heavy} if m in sys.modules])")
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_gradients_of_slopes_need_no_symbolic_shapes():
    code = """
import sys
import numpy as np
import torch
from coterie.nn import networks

weight = torch.ones(3, requires_grad=True)
outputs = [weight * 2, weight.reshape(3, 1) * torch.tensor([[3.0]])]
networks.backward(outputs, [np.array([1, -2, 0.1], np.float32), np.array([[1], [0], [-0.5]], np.float32)])
print(weight.grad.tolist() == [5.0, -4.0, float(torch.tensor(0.1) * 2 - 1.5)], "sympy" in sys.modules)
"""
    assert python(code).stdout.split() == ["True", "False"]
