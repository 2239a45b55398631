"""BibTeX of what was used, held to the facts of CITATION.cff."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import iclflow as icl
from iclflow.measures import learning_coefficient
from iclflow.study.citing import ENTRIES
from tests.helpers.commands import call, refused

CITATION = (Path(__file__).parents[2] / "CITATION.cff").read_text(encoding="utf-8")
TASK = icl.Task([0.6, 0.3], context=7)


def names(text):
    return re.findall(r"^@\w+\{(\w+),$", text, flags=re.M)


def test_without_anything_it_is_what_the_citation_file_says():
    assert names(icl.cite()) == ["iclflow", "zhang2025training", "mainali2025exact"]
    folded = " ".join(CITATION.split())
    for name in names(icl.cite()):
        fields = ENTRIES[name][1]
        assert re.sub(r"[{}]", "", fields["title"]) in folded
        for author in re.sub(r"[{}]", "", fields["author"]).split(" and "):
            family, _, given = author.partition(", ")
            assert f"family-names: {family}" in CITATION or f"name: {family}" in CITATION
            assert given in CITATION
        for field in ("volume", "year", "eprint", "version", "license"):
            assert fields.get(field, "") in CITATION
        for page in fields.get("pages", "").split("--"):
            assert page in CITATION


def test_each_result_names_the_paper_behind_it():
    init = icl.Separate.initialiser(TASK, heads=2, scale=0.1)
    runs = icl.sweep(TASK, init, icl.Descent(0.1), until=3, seeds=2)
    assert names(icl.cite(runs)) == ["iclflow", "zhang2025training"]
    assert names(icl.cite(runs, TASK, init)) == ["iclflow", "zhang2025training"]
    prediction = icl.predict(TASK, init(jax.random.key(0)), probes=0)
    assert names(icl.cite(prediction)) == ["iclflow", "zhang2025training"]
    found = learning_coefficient(lambda w: jnp.sum(w**2), jnp.zeros(2), draws=8, chains=2, leaps=1)
    exact = icl.theory.reduced_rank_coefficient(inputs=2, outputs=2, hidden=2)
    assert names(icl.cite(found, exact)) == ["iclflow", "lau2023local", "aoyagi2005stochastic"]
    old = runs.assign_attrs(iclflow_version="0.1.7")
    assert "{0.1.7}" in icl.cite(old)
    with pytest.raises(ValueError, match="nothing is known to cite for int"):
        icl.cite(3)


def test_braces_are_balanced_in_every_entry():
    for name in ENTRIES:
        text = str(ENTRIES[name])
        assert text.count("{") == text.count("}")


def test_the_shell_prints_entries(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert call(capsys, "cite")[:2] == (0, icl.cite())
    options = ["--model", "linear-transformer", "--steps", "3", "--out", "run.nc"]
    assert call(capsys, "simulate", *options)[0] == 0
    code, out, _ = call(capsys, "cite", "run.nc")
    assert code == 0
    assert names(out) == ["iclflow", "mainali2025exact"]
    assert "none.nc" in refused(capsys, "cite", "none.nc")
