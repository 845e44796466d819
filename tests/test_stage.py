import pytest

from bertrio.errors import UserError
from bertrio.files import read_json
from bertrio.stage import run_stage


def test_a_stage_tells_what_it_cost(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_stage("split", lambda: {"rows_per_second": 12.34})
    timing = read_json("metrics/timing/split.json")
    assert timing["rows_per_second"] == 12.3
    assert timing["seconds"] >= 0
    assert timing["peak_memory_mb"] > 1


def fail(error):
    raise error


@pytest.mark.parametrize(("error", "code"), [(UserError("data.path: [x] is\nwrong"), 2), (KeyboardInterrupt(), 130)])
def test_a_failure_ends_with_its_code_and_without_a_timing_file(tmp_path, monkeypatch, capsys, error, code):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        run_stage("split", lambda: fail(error))
    assert caught.value.code == code
    told = capsys.readouterr().err
    assert "split" in told
    assert (str(error) in told) and "Traceback" not in told
    assert not (tmp_path / "metrics").exists()
