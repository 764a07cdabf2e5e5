"""holdfast plan-contracts as users run it."""

from __future__ import annotations

LOADS = "\n".join(["0.3", "0.4", "0.5", "0.6"] * 30 + ["1.3"] * 6)


def test_a_file_of_loads_becomes_advice(inside, tmp_path):
    path = tmp_path / "cpu.txt"
    path.write_text(LOADS)
    told = inside.ok("plan-contracts", path, "--runs", 2000)
    assert "126 samples" in told
    assert "buyer   threshold" in told
    assert "for a capacity of 4 cores" in inside.ok("plan-contracts", path, "--runs", 2000, "--capacity", 4)
    assert "positive number of cores" in inside.fails("plan-contracts", path, "--capacity", 0)
    (plan,) = inside.objects("plan-contracts", path, "--runs", 2000)
    assert plan["advice"][0]["direction"] == "buyer"
    assert plan["spike_share"] > 0.04


def test_a_column_of_a_csv(inside, tmp_path):
    path = tmp_path / "usage.csv"
    path.write_text("time,cpu\n" + "\n".join(f"{n},{load}" for n, load in enumerate(LOADS.split())))
    assert "126 samples" in inside.ok("plan-contracts", path, "--column", "cpu", "--partners", "heavy", "--runs", 2000)
    assert "must be in the header" in inside.fails("plan-contracts", path, "--column", "gpu")
    assert "name a --column" in inside.fails("plan-contracts", path)


def test_what_is_not_a_load_is_named_with_its_line(inside, tmp_path):
    path = tmp_path / "cpu.txt"
    path.write_text(LOADS + "\n\nhigh\n")
    assert "line 128 of" in (told := inside.fails("plan-contracts", path))
    assert "must be a load such as 0.75; got 'high'" in told
    (tmp_path / "short.csv").write_text("time,cpu\n1,0.5\n2\n")
    assert "line 3 of" in inside.fails("plan-contracts", tmp_path / "short.csv", "--column", "cpu")
    assert "check the path" in inside.fails("plan-contracts", tmp_path / "none.txt")
