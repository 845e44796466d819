"""No pickle is ever loaded and no foreign code ever run: what the source may not hold, module by module."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "stages").glob("*.py")])

PICKLES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
ARCHIVES = {"tarfile", "zipfile"}
CALLS = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "torch.load", "torch.save", "torch.hub.load",
    "np.load", "numpy.load", "yaml.load_all", "yaml.full_load", "yaml.unsafe_load",
}  # fmt: skip
METHODS = {"read_pickle", "to_pickle", "unpack_archive", "extractall"}  # of whatever


def dotted(node: ast.expr) -> str:
    """`a.b.c` of a name or attribute; of another expression only what is behind it."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def keywords(call: ast.Call) -> dict[str, object]:
    return {item.arg: item.value.value for item in call.keywords if item.arg and isinstance(item.value, ast.Constant)}


def problems(source: str) -> Iterator[str]:
    """What a module has that none may have."""
    tree = ast.parse(source)
    safe = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and {dotted(base) for base in node.bases} == {"yaml.SafeLoader"}
    }
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from (name for name in named if name.split(".")[0] in PICKLES | ARCHIVES)
        if isinstance(node, ast.Call):
            yield from _of_call(node, safe)


def _of_call(call: ast.Call, safe_loaders: set[str]) -> Iterator[str]:
    name, given = dotted(call.func), keywords(call)
    method = name.rpartition(".")[2]
    if name in CALLS or method in METHODS:
        yield name
    if given.get("shell") or given.get("trust_remote_code") or given.get("allow_pickle"):
        yield f"{name} with {given}"
    if name == "yaml.load":
        loader = next((dotted(item.value) for item in call.keywords if item.arg == "Loader"), "")
        if loader not in safe_loaders:
            yield f"yaml.load with {loader or 'no loader'}"
    if method == "from_pretrained":
        has_weights = "Tokenizer" not in name and "Config" not in name
        if given.get("trust_remote_code") is not False:
            yield f"{name} without trust_remote_code=False"
        if has_weights and given.get("use_safetensors") is not True:
            yield f"{name} without use_safetensors=True"


def test_no_module_loads_pickles_runs_text_or_asks_for_remote_code():
    by_module = {str(path): list(problems(path.read_text(encoding="utf-8"))) for path in MODULES}
    assert len(by_module) > 100 and {path: names for path, names in by_module.items() if names} == {}


REFUSED = """
import pickle
from joblib import load
pd.read_pickle('a')
eval('1')
subprocess.run('ls', shell=True)
yaml.load(text, Loader=yaml.Loader)
AutoModel.from_pretrained(folder, use_safetensors=True)
AutoModel.from_pretrained(folder, trust_remote_code=False)
AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
shutil.unpack_archive('a.zip')
"""
TAKEN = """
model.eval()
re.compile('a')
AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
"""


def test_the_look_for_them_finds_them_and_nothing_else():
    assert [line for line in REFUSED.split("\n") if line and not list(problems(line))] == []
    assert list(problems(TAKEN)) == []
