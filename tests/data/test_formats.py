import csv
import random

import pytest

from bertrio.core.errors import UserError
from bertrio.data.formats import MAX_LINES, read_delimited


def read(tmp_path, content, delimiter="\t"):
    path = tmp_path / "f.tsv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    table = read_delimited(path, delimiter)
    return table.columns, list(table.rows())


@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_files_of_the_csv_module_round_trip(tmp_path, delimiter):
    rng = random.Random(0)
    letters = ["a", "é", '"', "'", ",", " ", "“"] + (["\n", "\t"] if delimiter == "," else [])
    table = [["".join(rng.choices(letters, k=rng.randint(1, 12))) for _ in range(3)] for _ in range(500)]
    with open(tmp_path / "w", "w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter).writerows([["x", "y", "z"], *table])
    columns, rows = read(tmp_path, (tmp_path / "w").read_bytes(), delimiter)
    assert columns == ["x", "y", "z"]
    assert [list(row.values.values()) for row in rows] == table and all(row.problem is None for row in rows)


def test_stray_quote_rejects_only_its_line(tmp_path):
    text = 'id\ttext\n1\tone\n2\t"two\n3\t"three" is\n4\tfour\n5\tfi"ve"\n6\t"six\n'
    _, rows = read(tmp_path, text)
    assert [row.number for row in rows if row.problem == "damaged quoting"] == [3, 4, 7]
    assert [row.values["text"] for row in rows if not row.problem] == ["one", "four", 'fi"ve"']
    assert rows[1].raw == '2\t"two'


def test_open_quote_in_a_tsv_rejects_only_its_line(tmp_path):
    _, rows = read(tmp_path, 'id\ttext\n1\t"one\n2\ttwo\n3\tthree"\n4\tfour\n')
    assert [row.problem for row in rows] == ["damaged quoting", None, None, None]


def test_open_quote_in_a_long_file_rejects_only_its_line(tmp_path):
    _, rows = read(tmp_path, 'id,text\n1,"one\n' + "2,two\n" * (2 * MAX_LINES), ",")
    assert len(rows) == 2 * MAX_LINES + 1 and [row.number for row in rows] == list(range(2, len(rows) + 2))
    assert sum(row.problem is not None for row in rows) == 1


def test_old_macintosh_line_ends_are_refused(tmp_path):
    with pytest.raises(UserError, match="found line ends of old Macintosh files, expected those of Unix or Windows"):
        read(tmp_path, "text\tlabel\rgood\t1\rbad\t0\r")


def test_bom_line_ends_nul_bytes_and_empty_lines(tmp_path):
    columns, rows = read(tmp_path, b"\xef\xbb\xbfid\ttext \r\n\r\n1\to\0ne\r\n2\ttwo")
    assert columns == ["id", "text"]
    assert [(row.number, *row.values.values()) for row in rows] == [(3, "1", "one"), (4, "2", "two")]
