"""Command that begins a repository: init."""

from __future__ import annotations

import argparse
import re
import shutil
from pathlib import Path
from typing import Any

from bertrio import __version__
from bertrio.cli.parser import user_path
from bertrio.core.errors import UserError, writing_to

PACKAGE = Path(__file__).parents[1]
REQUIREMENTS = "requirements.txt"
RESULTS = ("factorials", "search", "stepwise", "sweeps", "tables")  # folders in recipes/ that commands write
IGNORED = ["__pycache__/", ".*.partial", "/report.html", "/runs.html", "/logs/", "/dvc_plots/"]
IGNORED += [f"/recipes/{name}/" for name in RESULTS]


def add_init_commands(commands: Any) -> None:
    """Add the command to the parser's `commands`."""
    init = commands.add_parser("init", _init)
    init.add_argument("folder", type=user_path, metavar="FOLDER", help="the repository, which has no dvc.yaml so far")


def _init(args: argparse.Namespace) -> None:
    """Put params.yaml, dvc.yaml, stages and recipes into a new repository."""
    project, folder = PACKAGE / "project", args.folder  # part of the wheel
    root = project if project.is_dir() else PACKAGE.parents[1]
    templates = project / "templates" if project.is_dir() else root / ".dvc/plots"
    names = ("params.yaml", "dvc.yaml", "stages", "recipes", "templates", REQUIREMENTS)
    if found := [name for name in names if (folder / name).exists()]:
        raise UserError(f"{folder}: there is {', '.join(found)}; name a new folder, or one without these")
    ignore = shutil.ignore_patterns("__pycache__", "measured", *RESULTS)
    with writing_to(folder):
        for source in (root / "stages", root / "recipes", templates):
            shutil.copytree(source, folder / source.name.replace("plots", "templates"), ignore=ignore)
        shutil.copyfile(root / "params.yaml", folder / "params.yaml")
        text = (root / "dvc.yaml").read_text(encoding="utf-8")
        (folder / "dvc.yaml").write_text(_with_installed_code(text, [path.stem for path in templates.iterdir()]))
        (folder / REQUIREMENTS).write_text(f"bertrio[pipeline]=={__version__}\n")
        ignored = folder / ".gitignore"
        lines = ignored.read_text(encoding="utf-8").splitlines() if ignored.exists() else []
        ignored.write_text("".join(f"{line}\n" for line in [*lines, *IGNORED]), encoding="utf-8")
    print(f"wrote {folder}; next, in it: git init && dvc init && git add . && git commit -m begin && dvc repro")


def _with_installed_code(text: str, templates: list[str]) -> str:
    """Return dvc.yaml for stages that import the installed package: they depend on its version, not on src/."""
    text = re.sub(r"(?m)^ *- src/bertrio/.*\n", "", text)
    text = re.sub(r"(?m)^( *- )stages/\w+\.py$", rf"\g<0>\n\1{REQUIREMENTS}", text)
    return re.sub(rf"(template: )({'|'.join(templates)})\b", r"\1templates/\2.json", text)
