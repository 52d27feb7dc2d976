"""What the tests of reported failures share. Users of other libraries had reported them, and each
was here, too. A test asks for the right value, or for an error that names the field."""

import numpy as np

import attnd
from reference import attention as exact
from service import ServiceTest

HEADS, HEADS_KV, DIM, SIZE, PAGES = 4, 2, 64, 8, 64


class ReportedTest(ServiceTest):
    """A pool of one layer that is filled, and a batch over it."""

    options = ("--threads=1",)

    def setUp(self):
        super().setUp()
        self.draw = np.random.default_rng(5)
        self.pool = attnd.PagePool(self.session, 1, PAGES, SIZE, HEADS_KV, DIM, leased=False)
        self.k, self.v = (x.numpy() for x in self.pool.kv_cache(0))
        for x in (self.k, self.v):
            x[:] = self.draw.normal(size=x.shape)
        self.attention = attnd.BatchAttention(self.pool)

    def q(self, rows):
        return self.draw.normal(size=(rows, HEADS, DIM)).astype(np.float16)

    def wanted(self, q, pages, tokens, **said):
        keys, values = (x[pages].reshape(-1, HEADS_KV, DIM)[:tokens] for x in (self.k, self.v))
        return exact(q, keys, values, True, said.pop("scale", DIM**-0.5), **said)[0]

    def close_to(self, got, wanted):
        np.testing.assert_allclose(got.astype(float), wanted, rtol=1e-3, atol=1e-3)
