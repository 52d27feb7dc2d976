"""What the tests of vLLM's and SGLang's modules share.

The engines keep their caches on a GPU. Here caches lie in memory of a session, which the CPU worker
reads in the same way. $ATTND_TEST_NEED lists packages that must be there: a test that would skip
for want of one of them fails.
"""

import inspect
import os
import unittest

import numpy as np

from service import ServiceTest

try:
    import torch
except ImportError:
    torch = None


def need(module):
    """Import @module for a test, or skip the test."""
    try:
        return __import__(module, fromlist=["*"])
    except ImportError as missing:
        if module.partition(".")[0] in os.environ.get("ATTND_TEST_NEED", "").split():
            raise
        raise unittest.SkipTest(f"{module} cannot be imported here: {missing}") from missing


class Backend(ServiceTest):
    @classmethod
    def setUpClass(cls):
        need("torch")
        super().setUpClass()

    def setUp(self):
        super().setUp()
        self.draw = np.random.default_rng(5)

    def normal(self, *shape):
        return torch.tensor(self.draw.normal(size=shape)).half()

    def check(self, batch, q, k, v, out, **how):
        wanted, _ = batch.expected(q.numpy(), k.numpy(), v.numpy(), **how)
        np.testing.assert_allclose(out.double().numpy()[: batch.rows], wanted, rtol=1e-3, atol=1e-3)

    def check_interface(self, ours, published):
        """Every method of @ours that @published has can be called as that is called."""
        for name in vars(ours):
            base = getattr(published, name, None)
            if not inspect.isroutine(inspect.unwrap(getattr(ours, name))) or base is None:
                continue
            if name == "__init__" and base is object.__init__:
                continue
            with self.subTest(method=f"{ours.__name__}.{name}"):
                mine, theirs = (inspect.signature(inspect.unwrap(getattr(x, name)))
                                for x in (ours, published))  # fmt: skip
                rest = {x.kind for x in mine.parameters.values()} & {
                    inspect.Parameter.VAR_KEYWORD
                }
                for parameter in theirs.parameters.values():
                    if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                        continue
                    self.assertTrue(
                        parameter.name in mine.parameters or rest, f"no {parameter.name}"
                    )
                for parameter in mine.parameters.values():
                    known = parameter.name in theirs.parameters
                    optional = parameter.default is not parameter.empty or parameter.kind in (
                        parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)  # fmt: skip
                    self.assertTrue(known or optional, f"{parameter.name} is of our own")
