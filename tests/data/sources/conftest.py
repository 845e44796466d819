"""A fake hub: the endpoints that `datasets` and `huggingface_hub` call to load files."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import datasets
import pytest
from huggingface_hub import constants

from bertrio.data.sources.hub import _commit


@contextmanager
def client(url: str, home: Path) -> Iterator[None]:
    """Point the libraries, which read the hub's address at import, to `url` and an empty cache."""
    template = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    hub = {"ENDPOINT": url, "HUGGINGFACE_CO_URL_TEMPLATE": template, "HF_HUB_CACHE": str(home / "hub")}
    urls = {"HF_ENDPOINT": url, "HUB_DATASETS_URL": f"{url}/datasets/{{repo_id}}/resolve/{{revision}}/{{path}}"}
    caches = {"HF_DATASETS_CACHE": home / "datasets", "DOWNLOADED_DATASETS_PATH": home / "downloads"}
    _commit.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        for module, values in ((constants, hub), (datasets.config, urls | caches)):
            for name, value in (values | {"HF_HUB_OFFLINE": False}).items():
                patch.setattr(module, name, value)
        yield
    _commit.cache_clear()


@dataclass
class Repository:
    """A data set or model: `files` by commit, and the commit that each branch or ref points to."""

    files: dict[str, dict[str, bytes]]
    refs: dict[str, str] = field(default_factory=dict)

    def commit(self, revision: str) -> str | None:
        commit = self.refs.get(revision, revision)
        return commit if commit in self.files else None


@contextmanager
def serve(repositories: dict[str, Repository]) -> Iterator[tuple[str, list[str]]]:
    """Serve repositories by id on the loopback address; yield the URL and the list of requests."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            requests.append(f"{self.command} {self.path}")
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            self._answer(*_respond(repositories, unquote(url.path), parse_qs(url.query) | parse_qs(body)))

        do_HEAD = do_POST = do_GET

        def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        server.server_close()


def _respond(repositories, path: str, query: dict[str, list[str]]) -> tuple[int, dict[str, str], bytes]:
    for name, repository in repositories.items():
        api = f"/api/(?:models|datasets)/{name}"  # no test has a model and a data set of the same id
        if info := re.fullmatch(rf"{api}(?:/revision/(.+))?", path):
            return _info(name, repository, info[1] or "main")
        if (tree := re.fullmatch(rf"{api}/tree/([^/]+)/?(.*)", path)) and repository.commit(tree[1]):
            return _json(_tree(repository.files[repository.commit(tree[1])], tree[2], query))
        if file := re.fullmatch(rf"(?:/datasets)?/{name}/resolve/(.+)", path):
            return _file(repository, file[1])
    return _missing("RepoNotFound")


def _info(name: str, repository: Repository, revision: str) -> tuple[int, dict[str, str], bytes]:
    commit = repository.commit(revision)
    if commit is None:
        return _missing("RevisionNotFound")
    siblings = [{"rfilename": path} for path in repository.files[commit]]
    return _json({"id": name, "sha": commit, "siblings": siblings})


def _tree(files: dict[str, bytes], folder: str, query: dict[str, list[str]]) -> list[dict[str, object]]:
    prefix = f"{folder}/" if folder else ""
    names = [path.removeprefix(prefix) for path in files if path.startswith(prefix)]
    folders = {"/".join(path.split("/")[:depth]) for path in names for depth in range(1, path.count("/") + 1)}
    if query["recursive"] == ["false"]:
        folders = {path for path in folders if "/" not in path}
        names = [path for path in names if "/" not in path]
    entries = {prefix + path: ("directory", b"") for path in sorted(folders)}
    entries |= {prefix + path: ("file", files[prefix + path]) for path in names}
    return [
        {"type": kind, "path": path, "size": len(content), "oid": _digest(content or path.encode())}
        for path, (kind, content) in entries.items()
    ]


def _file(repository: Repository, path: str) -> tuple[int, dict[str, str], bytes]:
    for revision in (*repository.refs, *repository.files):
        if path.startswith(f"{revision}/"):
            commit = repository.commit(revision)
            content = repository.files[commit].get(path.removeprefix(f"{revision}/"))
            if content is None:
                return _missing("EntryNotFound", {"X-Repo-Commit": commit})
            return 200, {"ETag": f'"{_digest(content)}"', "X-Repo-Commit": commit}, content
    return _missing("RevisionNotFound")


def _digest(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


def _json(value: object) -> tuple[int, dict[str, str], bytes]:
    return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()


def _missing(code: str, headers: dict[str, str] | None = None) -> tuple[int, dict[str, str], bytes]:
    return 404, {"X-Error-Code": code, **(headers or {})}, b""
