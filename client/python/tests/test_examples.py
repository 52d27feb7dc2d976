"""The engine that the README prints runs as it stands there."""

import os
import pathlib
import subprocess
import sys

from service import ROOT, ServiceTest


class Examples(ServiceTest):
    def test_the_engine_of_the_readme_says_what_it_should(self):
        engine = pathlib.Path(ROOT, "client/python/examples/engine.py")
        said = subprocess.run(
            [sys.executable, engine], env=dict(os.environ, ATTND_SOCKET=self.path),
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        self.assertEqual(said.stdout, "lse of the last token: 3.0\n")
