"""A Python that starts fast: processes forked from one that has imported the libraries.

`WarmPython(folder)` creates a folder `path` with the commands `python` and `dvc`. With that folder first in PATH, each
stage that DVC starts is a forked process with its own arguments, folder, environment and exit code. No code of bertrio
is imported beforehand. The order of sets is the same in all processes.
"""

import array
import os
import signal
import socket
import sys


class WarmPython:
    """A server that forks processes, and the commands that connect to it.

    Attributes:
        path: the folder of the commands.
        python: path of the command `python`.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        import subprocess

        self.path = os.path.join(folder, "bin")
        self.python = os.path.join(self.path, "python")
        server = os.path.join(folder, "socket")
        os.makedirs(self.path)
        for name, module in (("python", ""), ("dvc", "-m dvc")):
            command = os.path.join(self.path, name)
            with open(command, "w") as file:
                file.write(f'#!/bin/sh\nexec {sys.executable} -I -S {__file__} {server} {module} "$@"\n')
            os.chmod(command, 0o755)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(server)
        listener.listen()  # clients wait until the libraries are imported
        command = [sys.executable, __file__, "serve", str(listener.fileno())]
        self._server = subprocess.Popen(command, pass_fds=[listener.fileno()], cwd="/")
        listener.close()

    def environment(self) -> dict[str, str]:
        """Return the environment with these commands first in PATH, and those of this Python behind them."""
        path = os.pathsep.join([self.path, os.path.dirname(sys.executable), os.environ["PATH"]])
        return {**os.environ, "PATH": path}

    def close(self) -> None:
        """End the server."""
        self._server.kill()
        self._server.wait()


def request(server: str, arguments: list[str]) -> None:
    """Run Python with `arguments` in a process that the server forks, and exit as it does."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(server)
    message = repr((server, arguments, os.getcwd(), dict(os.environ))).encode()
    streams = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", (0, 1, 2)))]
    connection.sendmsg([b"%16d" % len(message)], streams)
    connection.sendall(message)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: connection.send(bytes([number])))
    code = int(connection.recv(16) or 1)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    sys.exit(code)


def serve(number: int) -> None:
    """Import the libraries, and run each request in its own process."""
    import gc
    import importlib

    for library in LIBRARIES:
        importlib.import_module(library)
    gc.freeze()  # a collection in a child would copy all memory pages
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children leave no zombies
    listener, parent = socket.socket(fileno=number), os.getppid()
    listener.settimeout(1.0)
    while os.getppid() == parent:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            return handle(connection)
        connection.close()


def handle(connection: socket.socket) -> None:
    """Fork once more, run the request, and send its exit code."""
    import ast
    import atexit
    import contextlib
    import threading
    import traceback

    length, ancillary, _, _ = connection.recvmsg(16, socket.CMSG_SPACE(12))
    streams = array.array("i", ancillary[0][2])
    message = b""
    while len(message) < int(length):
        message += connection.recv(1 << 16)
    server, arguments, folder, environment = ast.literal_eval(message.decode())
    child = os.fork()
    if child:
        threading.Thread(target=forward_signals, args=(connection, child), daemon=True).start()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with contextlib.suppress(OSError):  # the client is gone
            connection.send(b"%d" % code)
        os._exit(0)
    connection.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.executable = os.path.join(os.path.dirname(server), "bin", "python")  # its children are warm as well
    sys.orig_argv = [sys.executable, *arguments]
    code = 1
    try:
        run(arguments)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:  # as an interpreter exits, but without the slow teardown of the libraries
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def forward_signals(connection: socket.socket, child: int) -> None:
    """Forward the client's signals to the child; kill the child if the client is gone."""
    import contextlib

    with contextlib.suppress(ProcessLookupError):  # it has just ended
        while number := connection.recv(1):
            os.kill(child, number[0])
        os.kill(child, signal.SIGKILL)


def run(arguments: list[str]) -> None:
    """Run `python ARGUMENTS` in this process, for a script, `-m` and `-c`."""
    import runpy

    sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    kind, *rest = arguments
    if kind == "-u":
        run(rest)
    elif kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(rest[0], {"__name__": "__main__"})
    elif kind == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, os.path.dirname(os.path.abspath(kind)))
        runpy.run_path(kind, run_name="__main__")


LIBRARIES = (  # that take long to import
    "torch", "torch._dynamo", "transformers.models.bert.modeling_bert", "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto", "transformers.models.bert.tokenization_bert",
    "transformers.tokenization_utils_fast", "pandas", "pyarrow.parquet", "pyarrow.pandas_compat", "safetensors.torch",
    "pydantic.main", "pydantic.json_schema", "filelock", "rich.progress", "scipy.stats",
    "sklearn.feature_extraction.text", "sklearn.linear_model", "matplotlib.figure", "matplotlib.backends.backend_agg",
    "torchjd.aggregation", "accelerate", "jinja2", "yaml", "ruamel.yaml",
    "dvc.cli.parser", "dvc.repo", "dvc.repo.index", "dvc.repo.plots", "dvc.repo.experiments.executor.local",
    "dvc.repo.experiments.queue.celery", "dvc.repo.experiments.queue.tasks", "dvc.repo.experiments.run",
    "dvc.utils.hydra", "hydra.compose", "dulwich.porcelain", "networkx", "pygit2",
)  # fmt: skip

if __name__ == "__main__":
    serve(int(sys.argv[2])) if sys.argv[1] == "serve" else request(sys.argv[1], sys.argv[2:])
