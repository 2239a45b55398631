"""The index of equations is complete, and docstrings cite only what the papers have."""

import functools
import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def load():
    spec = importlib.util.spec_from_file_location("equations", ROOT / "docs" / "equations.py")
    module = sys.modules["equations"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


eq = load()
DATA = eq.read()
KNOWN = {paper: eq.equations(about) for paper, about in DATA.items()}


@functools.cache
def citations(folder):
    return eq.citations(ROOT / folder)


def named(found, paper):
    return {citation.key for citation in found if citation.paper == paper}


def test_docstrings_cite_equations_that_exist():
    wrong = [
        f"{c.module}:{c.name} cites ({c.key}{c.part}) of the {c.paper} paper"
        for c in citations("iclflow") + citations("tests")
        if c.key not in KNOWN[c.paper] or c.part > KNOWN[c.paper][c.key].parts
    ]
    assert wrong == []


@pytest.mark.parametrize("paper", DATA)
def test_every_equation_has_code_and_a_test_or_a_reason(paper):
    """What is said to hold is computed and tested; what is a step is not claimed to be computed."""
    code = named(eq.implementing(citations("iclflow")), paper)
    tests = named(eq.testing(citations("tests")), paper)
    holds = {key for key, said in KNOWN[paper].items() if said.holds}
    steps = {key for key, said in KNOWN[paper].items() if said.step}
    assert holds | steps == set(KNOWN[paper])
    assert holds - code == set()
    assert holds - tests == set()
    assert steps & (code | holds) == set()


def test_the_numbers_of_both_versions():
    first = KNOWN["first"]
    assert [k for k in first if k.isdigit()] == [str(n) for n in range(1, 88)]
    main = [said.icml for key, said in first.items() if key != "67" and said.icml.isdigit()]
    assert main == [str(n) for n in range(1, 23)]


def test_labels_are_those_of_the_corrections():
    page = (ROOT / "docs" / "corrections.md").read_text(encoding="utf-8")
    rows = page.partition("{ #labels }")[2].splitlines()
    assert [row.split()[1] for row in rows if row.startswith("| E")] == list(KNOWN["own"])


def test_citations_are_read_as_written():
    def read(text, paper="first"):
        return list(eq.cited(text, paper))

    assert read("(19c) and (45)-(46), L(0), M(S), w[i](3)") == [
        ("first", "19", "c"), ("first", "45", ""), ("first", "46", ""),
    ]  # fmt: skip
    assert read("(7)(M), E2, Section 4.1 (2025)") == [
        ("first", "7", ""), ("first", "M", ""), ("own", "E2", ""), ("first", "Section 4.1", ""),
    ]  # fmt: skip
    assert read("(17), then second paper (13)") == [("first", "17", ""), ("second", "13", "")]
    assert read("(12); (17) of the first paper, (8)", "second")[0] == ("second", "12", "")
    assert read("first paper (17)", "second") == [("first", "17", "")]


def test_the_page_has_a_row_for_every_equation():
    page = eq.write((ROOT / "docs" / "equations.md").read_text(encoding="utf-8"))
    rows = [line for line in page.splitlines() if line.startswith(("| (", "| E", "| Section"))]
    assert len(rows) == sum(map(len, KNOWN.values()))
    columns = {len(re.findall(r"(?<!\\)\|", row)) for row in rows}
    assert columns == {6, 7}  # a bar of |k| is written \\|, the first paper has two numbers
    row = next(row for row in rows if row.startswith("| (24) | (19) |"))
    assert 'identifier="iclflow.theory.fixed_points.modes.plateau_losses"' in row
    assert "`test_theory_modes` paper levels" in row
