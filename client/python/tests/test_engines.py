"""bench/engines uses the package as it is: the calls that it makes on a GPU fit the signatures, and
name what the buffers are."""

import sys
import types
import unittest
from unittest import mock

import attnd
from service import ROOT

sys.path.insert(0, str(ROOT / "bench/engines"))
import ways


class Buffer:
    def __init__(self, *shape, stride=None):
        self.shape, self._stride = shape, stride

    def stride(self):
        return self._stride


class EnginesTest(unittest.TestCase):
    def setUp(self):
        self.batch = ways.PagedBatch([(2, 20), (1, 16)], [5, 3, 9])
        self.buffers = types.SimpleNamespace(
            k=["k0", "k1"], v=["v0", "v1"],
            q=[Buffer(3, 8, 128, stride=(1536, 128, 1))] * 2,
            o=[Buffer(3, 8, 128, stride=(1024, 128, 1))] * 2,
            new_k=[Buffer(3, 2, 128)] * 2, new_v=[Buffer(3, 2, 128)] * 2, cos_sin="angles",
        )  # fmt: skip

    def made(self, batches=1, fuses=False, executor="engine"):
        """The classes that stand for the package's, a session, and attention of the last batch."""
        made = {
            name: mock.create_autospec(getattr(attnd, name))
            for name in ("Session", "PagePool", "BatchAttention")
        }
        made["Session"].return_value.info = {"executor": executor}
        with mock.patch.multiple(attnd, **made):
            session = ways.AttndSession(self.buffers, "/a/socket", "engine 0 D")
            for _ in range(batches):
                way = session.attention(self.batch, self.buffers, fuses)
            return made, session, way

    def test_the_plan_is_of_the_rows_among_those_of_k_and_v(self):
        made, _, way = self.made()
        (_, layers), _ = made["PagePool"].from_tensors.call_args
        self.assertEqual(layers, [("k0", "v0"), ("k1", "v1")])
        given, named = way.attention.plan.call_args
        self.assertEqual(given, ([0, 2, 3], [0, 2, 3], [5, 3, 9], [4, 16], 8))
        self.assertEqual((named["q_strides"], named["out_strides"]), ((1536, 128), (1024, 128)))
        self.assertTrue(named["causal"])
        self.assertEqual([call.args[1] for call in way.attention.prepare.mock_calls], [0, 1])

    def test_a_layer_runs_on_its_buffers_and_the_lanes_error_is_told_in_words(self):
        _, session, way = self.made()
        way.attend(1)
        way.attention.run.assert_called_once_with(self.buffers.q[1], 1, self.buffers.o[1])
        way.attention.lane_error.return_value = None
        self.assertIsNone(session.lane_error())
        fault = attnd._abi.Fault(code=-18)
        way.attention.lane_error.side_effect = attnd.errors.error(fault)
        self.assertIn(str(attnd.errors.error(fault)), session.lane_error())
        session.close()
        way.attention.close.assert_called_once_with()
        session.session.close.assert_called_once_with()

    def test_a_run_that_also_rotates_is_given_k_and_v_of_the_product(self):
        for fuses in False, True:
            _, _, way = self.made(fuses=fuses)
            self.assertEqual(way.appends, fuses)
            way.attend(1)
            self.assertEqual(way.attention.run.called, not fuses)
        way.attention.run_fused.assert_called_once_with(
            self.buffers.q[1], self.buffers.new_k[1], self.buffers.new_v[1], 1, self.buffers.o[1],
            cos_sin="angles",
        )  # fmt: skip
        _, _, way = self.made(fuses=True, executor="service")
        self.assertFalse(way.appends)
        self.buffers.new_k[0].shape = 3, 1, 128  # 16 rows on a head of K
        self.assertTrue(self.made(fuses=True)[2].appends)
        self.batch.rows[0] = 3
        self.assertFalse(self.made(fuses=True)[2].appends)

    def test_several_batches_have_plans_of_one_pool(self):
        made, session, _ = self.made(batches=2)
        made["PagePool"].from_tensors.assert_called_once()
        pools = [call.args for call in made["BatchAttention"].call_args_list]
        self.assertEqual(pools, [(session.pool,)] * 2)


if __name__ == "__main__":
    unittest.main()
