"""The package as a whole: its help, its exports, its library, and children made by fork()."""
import inspect
import os
import pydoc

import pytest

import kermes


def test_help_tells_what_there_is():
    text = pydoc.plain(pydoc.render_doc(kermes))
    for word in ("Index", "search", "tensor", "backward", "Error", "fork"):
        assert word in text


def test_all_that_is_exported_is_there_and_documented():
    for name in kermes.__all__:
        thing = getattr(kermes, name)
        if callable(thing):
            assert inspect.getdoc(thing), name


def test_hints_are_on_every_function():
    for name in kermes.__all__:
        thing = getattr(kermes, name)
        if inspect.isfunction(thing):
            assert "return" in thing.__annotations__, name
    assert os.path.exists(os.path.join(os.path.dirname(kermes.__file__), "py.typed"))


def test_examples_in_docstrings_run():
    import doctest
    import numpy as np
    from kermes import files, indexes, optim, tensors, training
    for module in (tensors, indexes, optim, files, training):
        result = doctest.testmod(module, extraglobs={"kermes": kermes, "np": np})
        assert result.attempted and not result.failed, module.__name__


def test_errors_fit_python_and_carry_the_status():
    for cls, python, status in [
            (kermes.ShapeError, ValueError, "ERR_SHAPE"), (kermes.DtypeError, TypeError, "ERR_DTYPE"),
            (kermes.OutOfMemory, MemoryError, "ERR_MEMORY"), (kermes.FileError, OSError, "ERR_FILE"),
            (kermes.FileMissing, FileNotFoundError, "ERR_FILE"),
            (kermes.UnsupportedError, NotImplementedError, "ERR_UNSUPPORTED")]:
        assert issubclass(cls, kermes.Error) and issubclass(cls, python) and cls.status == status


def test_a_library_that_is_not_there_is_named(child):
    assert "/no/such.so" in child(
        "import os\n"
        "os.environ['KERMES_LIBRARY'] = '/no/such.so'\n"
        "try:\n    import kermes\n"
        "except ImportError as e:\n    print(e)\n")


FORK = """
import os, sys, kermes
{before}
pid = os.fork()
if pid == 0:
    try:
        {inside}
        os._exit(0)
    except kermes.StateError as e:
        os._exit(7 if "fork" in str(e) else 8)
    except BaseException:
        os._exit(9)
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
{after}
print(status)
"""


@pytest.mark.parametrize("before, inside", [
    ("x = kermes.ones((300, 300))", "x @ x"),
    ("x = kermes.ones((300, 300))", "kermes.zeros(3)"),
    ("import numpy as np; i = kermes.Index.build(np.eye(64, dtype='f4'), bytes=8)",
     "i.search(np.eye(64)[:2])"),
])
def test_a_forked_child_gets_an_error_and_no_hang(child, before, inside):
    assert child(FORK.format(before=before, inside=inside, after="x = kermes.ones(3) + 1")) == "7\n"


def test_a_child_forked_before_first_use_works(child):
    assert child(FORK.format(before="", inside="kermes.ones((64, 64)) @ kermes.ones((64, 64))",
                             after="")) == "0\n"
