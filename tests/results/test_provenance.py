"""The key of data follows the code that they depend on, and nothing else."""

import textwrap
from functools import partial

import equinox as eqx
import jax
import pytest

from iclflow.results import provenance
from iclflow.results.provenance import code_key, content_key

FILES = {
    "__init__": '__version__ = "0"\n',
    "__init__.pyi": "from iclflow.tasks.task import Task as Task\n",
    "linalg": '"""Roots."""\nSCALE = 2.0  # of everything\n',
    "plots/__init__": "",
    "plots/loss": "COLOUR = 1\n",
    "tasks/__init__": "from iclflow.tasks.task import Task\n",
    "tasks/task": """
        import iclflow
        from iclflow.linalg import SCALE

        class Task:
            "A task."

            def size(self):
                '''Its size.'''
                return SCALE, iclflow.__version__
        """,
    "experiments/__init__": "",
    "experiments/one/__init__": "",
    "experiments/one/data": """
        def compute():
            from iclflow import tasks

            return tasks.Task()
        """,
    "experiments/one/figure": "from iclflow.plots.loss import COLOUR\n",
    "experiments/other/__init__": "",
    "experiments/other/data": "import iclflow as icl\n\nCOMPUTE = icl.Task\n",
}


@pytest.fixture
def change(tmp_path, monkeypatch):
    """Write files of a small package; gives the keys of the data of its two experiments."""
    package = tmp_path / "iclflow"
    monkeypatch.setattr(provenance, "PACKAGE", package)

    def write(**files):
        for name, text in files.items():
            path = package / (name if name.endswith(".pyi") else f"{name}.py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        return [code_key(f"iclflow.experiments.{name}.data") for name in ("one", "other")]

    write.before = write(**FILES)
    return write


def test_comments_docstrings_and_layout_keep_the_key(change):
    linalg = '"""Square roots."""\n\n# As in the paper.\nSCALE = (\n    2.0\n)\n'
    task = FILES["tasks/task"].replace("Its size", "How large").replace('"A task."', '"Another."')
    assert task != FILES["tasks/task"]
    assert change(linalg=linalg, **{"tasks/task": task}) == change.before


def test_a_constant_far_below_changes_the_key(change):
    one, other = change(linalg="SCALE = 3.0\n")
    assert one != change.before[0]
    assert other != change.before[1]  # reached through the face of the package
    assert change(linalg=FILES["linalg"]) == change.before


def test_a_package_counts_for_what_is_imported_from_it(change):
    text = FILES["tasks/__init__"] + "Task.SIZE = 1\n"
    assert change(**{"tasks/__init__": text})[0] != change.before[0]


def test_other_experiments_drawings_and_the_version_do_not_count(change):
    face = FILES["__init__"].replace('"0"', '"1"')
    one, other = change(**{"plots/loss": "COLOUR = 2\n", "experiments/one/figure": "INK = 1\n"})
    assert [one, other] == change.before
    one, other = change(**{"experiments/other/data": "COMPUTE = 2\n", "__init__": face})
    assert one == change.before[0]
    assert other != change.before[1]


def test_several_modules_have_one_key(change):
    both = code_key("iclflow.experiments.one.data", "iclflow.plots.loss")
    change(**{"plots/loss": "COLOUR = 2\n"})
    assert code_key("iclflow.experiments.one.data", "iclflow.plots.loss") != both


def test_a_module_that_is_not_there_is_named(change):
    with pytest.raises(ModuleNotFoundError, match="no module no_such_experiment"):
        code_key("no_such_experiment")


def test_the_content_key_follows_settings(change):
    assert content_key({"a": 1}) == content_key({"a": 1}) != content_key({"a": 2})


def written(text, **names):
    """What a program makes of a text, under the name `f`."""
    space = {"__name__": "program", "eqx": eqx, "jax": jax, **names}
    exec(textwrap.dedent(text), space)
    return space["f"]


SQUARE = """
    SCALE = 2.0

    def helper(x):
        return SCALE * x

    def f(model, loss):
        "The square."
        return helper(model.keys) ** 2
    """


def test_a_function_is_known_by_what_it_does():
    key = content_key({"record": written(SQUARE)})
    assert content_key({"record": written(SQUARE.replace("The square", "Squared"))}) == key
    assert content_key({"record": written(SQUARE + "\n    f = jax.jit(f)")}) == key
    for old, new in (("** 2", "** 3"), ("SCALE *", "SCALE +"), ("2.0", "3.0"), (".keys", ".k")):
        assert content_key({"record": written(SQUARE.replace(old, new))}) != key


def test_lambdas_closures_and_methods_are_told_apart():
    def power(n, extra=0):
        return lambda model, loss: model.keys**n + extra

    keys = [content_key(power(n)) for n in (2, 2, 3)]
    assert keys[0] == keys[1] != keys[2]
    assert content_key(power(2, 1)) != keys[0]
    assert content_key(partial(max, 1)) != content_key(partial(max, 2))
    own = """
        class Own(eqx.Module):
            n: int

            def __call__(self, model, loss):
                return model.keys ** self.n + len(str(f))

        f = Own(2)
        """
    key = content_key(written(own))  # which refers to itself
    assert content_key(written(own)) == key
    assert content_key(written(own.replace("self.n +", "self.n -"))) != key
    assert content_key(written(own.replace("Own(2)", "Own(3)"))) != key
