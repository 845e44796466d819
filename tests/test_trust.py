"""Static checks that no module loads a pickle or runs foreign code."""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RULES = "S102,S301,S307,S506,S602,S604,S605,TID251"  # exec, pickles, eval, YAML loaders, shells, BANNED
BANNED = (
    "pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "tarfile", "zipfile",
    "numpy.load", "torch.load", "torch.save", "torch.hub", "shutil.unpack_archive",
    "yaml.load_all", "yaml.full_load", "yaml.unsafe_load",
)  # fmt: skip


def test_no_module_loads_pickles_or_runs_strings():
    banned = ", ".join(f'"{name}" = {{msg = "banned"}}' for name in BANNED)
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--ignore-noqa", "--select", RULES]
    command += ["--config", f"lint.flake8-tidy-imports.banned-api = {{{banned}}}", "--output-format", "concise"]
    result = subprocess.run([*command, "src", "stages"], cwd=ROOT, capture_output=True, text=True)
    assert result.stdout == "All checks passed!\n", result.stdout + result.stderr


def test_models_load_from_safetensors_without_remote_code():
    calls = []
    for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "stages").glob("*.py")]:
        text = path.read_text(encoding="utf-8")
        assert "trust_remote_code=True" not in text and "allow_pickle=True" not in text, path
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
        calls += [ast.unparse(node) for node in nodes if getattr(node.func, "attr", "") == "from_pretrained"]
    assert len(calls) > 3 and all("trust_remote_code=False" in call for call in calls), calls
    weights = [call for call in calls if "Tokenizer" not in call and "Config" not in call]
    assert weights and all("use_safetensors=True" in call for call in weights), weights
