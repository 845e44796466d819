"""Stages side by side: real processes, killed for good, and a real DVC queue."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bertrio.core.errors import UserError
from bertrio.core.workers import FOLDER, VARIABLE, Place, share, take_place
from tests.toy_project import Clone, toy_project

STAGE = """
import sys
from bertrio.core.workers import take_place

cards = int(sys.argv[1])
place = take_place(cards)
print(place.slot, place.card(cards), flush=True)
sys.stdin.read()
"""
QUEUED = """
import json, os, time
from pathlib import Path
import yaml
from bertrio.core.workers import take_place

place = take_place(cards=2)
number = yaml.safe_load(open("params.yaml"))["train"]["number"]
Path("place.json").write_text(json.dumps([place.slot, place.card(2), place.threads(8)]))
met = Path(os.environ["MEET"])
(met / str(number)).touch()
end = time.monotonic() + 90
while len(list(met.iterdir())) < 2 and time.monotonic() < end:  # both at a time, or there is nothing to see
    time.sleep(0.05)
"""


@pytest.fixture
def stage(root, tmp_path, monkeypatch):
    """Starts processes that take a place and keep it; gives each with its slot, its card and what it said."""
    monkeypatch.setenv("PYTHONPATH", str(root / "src"))
    monkeypatch.setenv(FOLDER, str(tmp_path / "slots"))
    started = []

    def start(workers: int, cards: int = 1):
        process = subprocess.Popen(
            [sys.executable, "-c", STAGE, str(cards)],
            env={**os.environ, VARIABLE: str(workers)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        slot, card = map(int, process.stdout.readline().split())
        return process, slot, card

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_every_stage_has_a_slot_of_its_own_and_a_killed_one_gives_it_back(stage):
    (first, *_), (second, *_) = of = [stage(2), stage(2)]
    assert [slot for _, slot, _ in of] == [0, 1]
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert stage(2)[1] == 0
    second.communicate("")  # ends in good order
    assert stage(2)[1] == 1


def test_stages_beyond_the_slots_are_told_and_share(stage):
    cards = [stage(2, cards=2)[2] for _ in range(2)]
    third, slot, card = stage(2, cards=2)
    assert (sorted(cards), slot, card) == ([0, 1], 2, 0)
    assert "BERTRIO_WORKERS=2, and all slots are taken" in third.communicate("")[1]


def test_of_free_slots_the_one_whose_card_has_the_fewest_stages_is_taken(stage):
    """Four slots on two cards: after slots 1 and 3 have ended, card 1 is free and slots 0 and 2 keep card 0."""
    started = [stage(4, cards=2) for _ in range(4)]
    assert sorted(card for *_, card in started) == [0, 0, 1, 1]
    for process, slot, _ in started:
        if slot != 2:
            process.communicate("")
    assert stage(4, cards=2)[2] == 1


def test_threads_are_shared_alike_whatever_the_slot():
    for workers, threads, own in [(1, 8, 8), (2, 8, 4), (3, 8, 2), (16, 8, 1)]:
        assert {Place(slot, workers).threads(threads) for slot in (*range(workers), None)} == {own}


def test_what_params_leave_open_is_shared(monkeypatch, tmp_path):
    monkeypatch.setenv(FOLDER, str(tmp_path / "slots"))
    assert share("auto", None, 8, 2) == ("auto", None)
    monkeypatch.setenv(VARIABLE, "3")
    assert share("auto", None, 8, 2) == ("cuda:0", 2)
    assert share("auto", None, 8, 1) == share("auto", None, 8, 0) == ("auto", 2)
    assert share("cuda:1", 5, 8, 2) == ("cuda:1", 5)


def test_without_the_variable_nobody_is_in_the_way(monkeypatch, tmp_path):
    monkeypatch.setenv(FOLDER, str(tmp_path / "slots"))
    for value in (None, "", " "):
        monkeypatch.delenv(VARIABLE, raising=False) if value is None else monkeypatch.setenv(VARIABLE, value)
        assert take_place() is None
    assert not (tmp_path / "slots").exists()


@pytest.mark.parametrize("value", ["two", "0", "-1", "1.5", "²"])
def test_a_number_of_workers_that_is_none_is_an_error(monkeypatch, value):
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(UserError, match=f"BERTRIO_WORKERS={value}: expected a whole number from 1 on, the N of dvc"):
        take_place()


def test_a_process_keeps_its_place_and_a_folder_that_can_not_be_made_is_told(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv(VARIABLE, "2")
    monkeypatch.setenv(FOLDER, str(tmp_path / "slots"))
    assert take_place() is take_place()
    (tmp_path / "file").touch()
    monkeypatch.setenv(FOLDER, str(tmp_path / "file/slots"))
    place = take_place(cards=2)
    assert (place.slot, place.card(2), place.threads(8)) == (None, 0, 4)
    assert "no slot can be locked in" in capsys.readouterr().err


def test_two_workers_of_a_dvc_queue_are_in_two_slots(root, tmp_path, monkeypatch):
    for folder in ("project", "meet"):
        (tmp_path / folder).mkdir()
    paths = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]  # DVC starts workers as `dvc`
    given = {"PATH": os.pathsep.join(paths), "PYTHONPATH": str(root / "src"), "MEET": str(tmp_path / "meet")}
    for name, value in {**given, VARIABLE: "2", FOLDER: str(tmp_path / "slots")}.items():
        monkeypatch.setenv(name, value)
    outs = [{"place.json": {"cache": False}}]
    project = toy_project(tmp_path / "project", QUEUED, "train: {number: 0}\n", outs=outs)
    project.commit()
    project.dvc("exp", "run", "-q", "--queue", "-S", "train.number=1,2")
    project.dvc("queue", "start", "-j", "2")
    try:
        refs = until(lambda: len(found := experiments(project)) == 2 and found)
    finally:
        project.dvc("queue", "stop", "--kill")
    places = [json.loads(project.git("show", f"{ref}:place.json")) for ref in refs]
    assert sorted(places) == [[0, 0, 4], [1, 1, 4]]


def experiments(project: Clone) -> list[str]:
    found = project.git("for-each-ref", "--format=%(refname)", "refs/exps").split()
    return [ref for ref in found if len(ref.split("/")) == 5]  # refs/exps/<2 digits>/<38 digits>/<name>


def until(find, seconds: float = 120):
    """Waits for something true, and gives it."""
    end = time.monotonic() + seconds
    while not (found := find()):
        assert time.monotonic() < end
        time.sleep(0.2)
    return found
