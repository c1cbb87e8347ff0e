"""What pyproject.toml cannot say: a wheel carries `profiles`, `docker` and `requirements` in `edgebed/_data`."""

import runpy
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

FOLDERS = runpy.run_path("orchestrator/files/shipped.py")["FOLDERS"]


class BuildWithData(build_py):
    """Copies the folders beside the modules; an editable install reads them in the source tree."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)  # modules of an earlier build would go into the wheel
            for name, folder in FOLDERS.items():
                shutil.copytree(folder, Path(self.build_lib, "edgebed", "_data", name))
        super().run()


setup(cmdclass={"build_py": BuildWithData})
