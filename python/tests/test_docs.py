"""The Python lines of README.md and docs/python.md, run as they stand, each page in a folder of its own."""
import os
import re
import shutil

import pytest

from conftest import ROOT


@pytest.mark.parametrize("page", ["docs/python.md", "README.md"])
def test_the_lines_of_the_docs_run(page, tmp_path, child):
    with open(os.path.join(ROOT, page), encoding="utf-8") as f:
        blocks = re.findall(r"^```python\n(.*?)^```", f.read(), flags=re.M | re.S)
    assert blocks
    shutil.copy(os.path.join(ROOT, "models", "kermes-tiny.gguf"), tmp_path / "model.gguf")
    with open(os.path.join(ROOT, "docs", "training.md"), encoding="utf-8") as f:
        (tmp_path / "book.txt").write_text(f.read(), encoding="utf-8")
    child(f"import os\nos.chdir({str(tmp_path)!r})\n" + "\n".join(blocks), timeout=120)
