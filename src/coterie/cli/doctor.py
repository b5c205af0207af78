"""Examines this machine: versions, cores, GPU, disk, extras with their packages, fetched models and caches."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path

NAME, WIDTH = 14, 80
TOGETHER = "\N{NO-BREAK SPACE}"  # printed as a space; no line ends there
NEEDED = (
    *("numpy", "numba", "scipy", "threadpoolctl", "torch", "safetensors", "pydantic", "omegaconf", "pyyaml"),
    *("typer", "rich", "matplotlib", "pillow"),
)
EXTRAS = {  # extra -> what it is for, and its packages, as in pyproject.toml
    "worlds": (
        "worlds named gymnasium/…, pettingzoo/…, mpe/…, minigrid/…, and exports",
        ("gymnasium", "Box2D", "pettingzoo", "mpe2", "minigrid"),
    ),
    "openspiel": ("worlds named openspiel/…", ("open_spiel",)),
    "window": ("windows: watch --window, render_mode='human'", ("pygame-ce",)),
    "tensorboard": ("TensorBoard files", ("tensorboard",)),
    "video": ("MP4 videos", ("imageio-ffmpeg",)),
    "charts": ("charts of reports that can be zoomed", ("plotly",)),
    "web": ("coterie live", ("starlette", "uvicorn", "plotly")),
    "wandb": ("records to Weights & Biases", ("wandb",)),
    "mlflow": ("records to MLflow", ("mlflow-skinny",)),
    "onnx": ("coterie export --onnx", ("onnx", "onnxscript", "onnxruntime")),
    "pandas": ("results as data frames", ("pandas",)),
    "tune": ("coterie tune", ("optuna",)),
    "ray": ("workers on a cluster: train.ray", ("ray",)),
    "lm": ("language models in PyTorch, and servers", ("transformers", "gguf", "accelerate", "peft", "openai")),
    "cuda": ("kernels of worlds and algorithms on a GPU", ("numba-cuda",)),
    "server": ("llama.cpp: quick completions, a local server", ("xllamacpp",)),
    "minari": ("demonstrations as Minari datasets", ("minari",)),
}


def examine() -> Iterator[str]:
    """The findings, line by line, in 80 columns."""
    import torch

    import coterie
    from coterie.core.cores import usable_cores

    yield "machine"
    yield from line("coterie", f"{coterie.__version__}, {Path(coterie.__file__).parent}")
    yield from line("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    yield from line("cores", str(usable_cores()))
    yield from line("gpu", torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none")
    yield from line("sandbox", _sandbox())
    disk = shutil.disk_usage(Path.cwd())
    yield from line("disk", f"{disk.free / 1e9:.0f} GB free of {disk.total / 1e9:.0f} GB at {Path.cwd()}")
    yield "packages"
    for name in NEEDED:
        yield from line(name, version(name) or "MISSING: reinstall coterie")
    yield "extras"
    for extra, (purpose, packages) in EXTRAS.items():
        yield from line(extra, describe_extra(extra, purpose, packages))
    yield "models"
    yield from models()
    yield "caches and runs"
    yield from caches()


def line(name: str, text: str) -> list[str]:
    """A name and its text in two columns; long texts continue below, never at a no-break space."""
    margin = " " * (NAME + 3)
    folded = textwrap.wrap(
        text, WIDTH, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False, break_long_words=False
    ) or [margin]
    first, *others = [part.replace(TOGETHER, " ") for part in folded]
    return [f"  {name:{NAME}} {first.strip()}".rstrip(), *others]


def describe_extra(extra: str, purpose: str, packages: tuple[str, ...]) -> str:
    """Whether an extra is installed, with versions; or what is missing and how to get it."""
    known = {name: version(name) for name in packages}
    missing = [name for name, found in known.items() if found is None]
    if not missing:
        return ", ".join(f"{name}{TOGETHER}{found}" for name, found in known.items())
    lacks = f" (missing: {', '.join(missing)})" if len(missing) < len(packages) else ""
    return f"not installed{lacks}: {purpose}; pip install 'coterie[{extra}]'"


def models() -> Iterator[str]:
    """The built-in models: fetched, or how large the download is."""
    from coterie.lm.ask import embedded, minilm, wheels

    known = {"embedded": (embedded.FOLDER, "93 MB"), "minilm": (minilm.FOLDER, "84 MB")}
    for name, (folder, download) in known.items():
        path = wheels.cache_folder() / folder
        state = (
            f"{megabytes(path)} at {path}" if path.exists() else f"not fetched: {download}, by 'make lm' or first use"
        )
        yield from line(name, state)


def caches() -> Iterator[str]:
    """Lines on disk space besides packages: compiled code, runs, answers of language models among them."""
    import coterie

    hub = hub_cache()
    found = f"{megabytes(hub)} at {hub}" if hub.is_dir() else f"none at {hub}"
    yield from line("Hugging Face", f"{found}; models named by their repository")
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    folder = Path(chosen) if chosen else Path(coterie.__file__).parent
    compiled = [file for file in folder.rglob("*.nb[ci]") if file.is_file()]
    size = f"{sum(file.stat().st_size for file in compiled) / 1e6:.0f} MB in {len(compiled)} files"
    where = f" at {folder}" if chosen else ""
    yield from line("compiled code", f"{size}{where}; made anew when missing")
    runs = Path("runs")
    count = len(list(runs.rglob("config.yaml"))) if runs.is_dir() else 0
    kept = f"{megabytes(runs)} in {count} runs; 'coterie runs' lists them" if count else "none below runs/"
    yield from line("runs", kept)


def hub_cache() -> Path:
    """Hugging Face's folder of fetched models: HF_HUB_CACHE, else hub in HF_HOME, else in the user's cache."""
    if chosen := os.environ.get("HF_HUB_CACHE"):
        return Path(chosen).expanduser()
    general = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface"
    return Path(os.environ.get("HF_HOME", general)).expanduser() / "hub"


def megabytes(folder: Path) -> str:
    """The size of a folder."""
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
    return f"{size / 1e6:,.0f} MB"


def _sandbox() -> str:
    """The mechanism that isolates programs written by a language model, or why there is none."""
    from coterie import sandbox

    try:
        return f"{sandbox.live_mechanism()} isolates programs that a model wrote"
    except sandbox.SandboxUnavailable as error:
        return f"none: {error}"


def version(name: str) -> str | None:
    """The installed version of a package; None without it."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
