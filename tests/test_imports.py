"""What imports what: a quick command line, and a core that needs little."""

import subprocess
import sys

import pytest

from helpers.run import environment

CORE = [
    *("types", "world", "group", "runner", "nets", "heads", "returns", "preferences", "streams", "checks"),
    *(
        "policies.network",
        "policies.scripted",
        "policies.language",
        "roles.advisor",
        "policies.lora",
        "algorithms.ppo",
        "algorithms.maddpg",
        "evaluate",
        "checkpoint",
        "names",
        "train_settings",
    ),
    *("search_space", "bradley_terry", "roles.constraints"),
    *("testing", "worlds.gridworld", "worlds.tictactoe", "worlds.auction", "worlds.gridworld_text", "worlds.mpe_text"),
    *("prospect", "judging", "episodic", "valuations", "bidding", "equilibria"),
    *("lm.compose", "lm.local", "lm.scripted", "lm.calibrate", "lm.adapters"),
]
BLOCKED = [
    *("pydantic", "pydantic_core", "omegaconf", "yaml", "typer", "click", "rich", "matplotlib", "PIL", "gymnasium"),
    *("pettingzoo", "tensorboard", "safetensors", "pygame", "optuna", "sqlalchemy"),
    *("transformers", "gguf", "openai", "xllamacpp", "peft"),
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


def test_the_core_imports_with_numpy_numba_and_torch_alone():
    """One process for all: whoever imports something else fails first and is named."""
    imports = "".join(f"print('coterie.{name}', flush=True)\nimport coterie.{name}\n" for name in CORE)
    done = python(BLOCK + imports + "print('all')")
    assert done.stdout.splitlines()[-1] == "all", done.stdout.splitlines()[-1] + done.stderr


def test_the_block_blocks():
    assert python(BLOCK + "import omegaconf").returncode != 0
    assert python(BLOCK + "import coterie.config").returncode != 0


@pytest.mark.parametrize("module", ["coterie", "coterie.cli"])
def test_nothing_heavy_is_imported_before_it_is_needed(module):
    heavy = ["torch", "numpy", "numba", "pydantic", "omegaconf", "matplotlib"]
    done = python(f"import {module}, sys; print([m for m in {heavy} if m in sys.modules])")
    assert done.stdout.strip() == "[]"
