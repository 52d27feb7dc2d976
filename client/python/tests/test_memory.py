"""Tensors in and out: an object that looks at memory keeps it, and no other does."""

import ctypes as c
import gc
import subprocess
import sys
import threading
import unittest

import numpy as np

import attnd
from attnd import _dlpack
from attnd.memory import describe
from service import ServiceTest

try:
    import torch
except ImportError:
    torch = None


class MemoryTest(ServiceTest):
    def alive(self, handle):
        info = attnd._abi.MemoryInfo()
        return (
            attnd._library.lib.attnd_memory_info(self.session.native(), handle, c.byref(info)) == 0
        )

    def test_numpy_sees_the_bytes_and_keeps_them(self):
        tensor = self.session.empty((4, 3, 64), "float32")
        array, handle = tensor.numpy(), tensor.memory.handle
        array[2, 1, 5] = 42
        self.assertEqual(tensor.numpy()[2, 1, 5], 42)
        row = array[2]
        del tensor, array
        self.assertTrue(self.alive(handle))
        self.assertEqual(row[1, 5], 42)
        del row
        self.assertFalse(self.alive(handle))

    def test_a_consumer_of_dlpack_keeps_the_memory_until_its_deleter_ran(self):
        tensor = self.session.empty((8, 64), "float16")
        handle, before = tensor.memory.handle, _dlpack.lent_count()
        array = np.from_dlpack(tensor)
        self.assertEqual(_dlpack.lent_count(), before + 1)
        del tensor
        self.assertTrue(self.alive(handle))
        self.assertEqual((array.shape, array.sum()), ((8, 64), 0))
        del array
        self.assertEqual(_dlpack.lent_count(), before)
        self.assertFalse(self.alive(handle))

    def test_a_capsule_that_nobody_takes_is_given_back(self):
        tensor, before = self.session.empty((8, 64)), _dlpack.lent_count()
        capsules = [tensor.__dlpack__() for _ in range(3)]
        self.assertEqual(_dlpack.lent_count(), before + 3)
        del capsules
        self.assertEqual(_dlpack.lent_count(), before)

    def test_what_others_declare_of_pythons_own_functions_changes_nothing(self):
        theirs = c.pythonapi.PyCapsule_GetPointer
        self.addCleanup(setattr, theirs, "argtypes", theirs.argtypes)
        theirs.argtypes = [c.py_object, c.c_char_p]
        tensor, before = self.session.empty((8, 64)), _dlpack.lent_count()
        self.assertEqual(_dlpack.borrow(tensor.__dlpack__())[0], tensor.data_ptr())
        self.assertEqual(_dlpack.lent_count(), before)

    def test_a_deleter_on_another_thread_is_as_good(self):
        tensor = self.session.empty((8, 64))
        handle, holder = tensor.memory.handle, [np.from_dlpack(tensor)]
        del tensor
        thread = threading.Thread(target=holder.clear)
        thread.start()
        thread.join()
        self.assertFalse(self.alive(handle))

    def test_a_session_that_is_closed_leaves_what_is_looked_at(self):
        array = self.session.empty((1 << 20,), "uint8").numpy()
        self.session.close()
        array[:] = 7
        self.assertEqual(int(array.sum()), 7 << 20)

    def test_a_cycle_that_is_collected_as_one_ends_in_any_order(self):
        program = (
            "import attnd, gc, sys\n"
            "for order in range(40):\n"
            "    session = attnd.Session(sys.argv[1])\n"
            "    pool = attnd.PagePool(session, 1, 8, 16, 1, 64)\n"
            "    attention = attnd.BatchAttention(pool)\n"
            "    attention.plan([0, 1], [0, 1], pool.alloc_pages(1), [1], 1)\n"
            "    cycle = [session, session.empty(64), pool, attention]\n"
            "    cycle += [session._native, pool.memory]\n"
            "    cycle = cycle[order % 6 :] + cycle[: order % 6]\n"
            "    cycle.append(cycle)\n"
            "    session.cycle = cycle\n"
            "    del session, pool, attention, cycle\n"
            "    gc.collect()\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, self.path], capture_output=True, text=True
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_strided_views_describe_themselves(self):
        tensor = self.session.empty((4, 3, 64))
        for make in (
            lambda: tensor.numpy()[1:, :, ::2],
            lambda: np.from_dlpack(tensor)[1:, :, ::2],
        ):
            view = make()
            address, shape, strides, dtype, _, _ = describe(view)
            self.assertEqual(address, tensor.data_ptr() + 2 * 3 * 64)
            self.assertEqual((shape, strides, dtype), ((3, 3, 32), (192, 64, 2), "float16"))
            memory, offset, _ = self.session.place(describe(view))
            self.assertEqual((memory, offset), (tensor.memory.handle, 384))

    def test_a_tensor_known_only_by_dlpack_is_found_again(self):
        class Opaque:
            def __init__(self, tensor):
                self.__dlpack__ = tensor.__dlpack__

        tensor = self.session.empty((4, 64))
        described = describe(Opaque(tensor))
        self.assertEqual(described[:4], (tensor.data_ptr(), (4, 64), (64, 1), "float16"))
        self.assertEqual(self.session.place(described)[0], tensor.memory.handle)

    def test_memory_of_others_is_not_taken_for_the_sessions(self):
        with self.assertRaises(LookupError):
            self.session.place(describe(np.zeros((4, 64), np.float16)))

    def test_a_tensor_beyond_its_memory_is_refused(self):
        memory = self.session.memory(4096)
        memory.tensor((4096,), "uint8")
        for shape, strides, offset in (
            ((4097,), None, 0),
            ((2, 8), (4090, 1), 0),
            ((1,), None, 4096),
            ((1,), (1,), -1),
        ):
            with self.assertRaises(ValueError):
                memory.tensor(shape, "uint8", offset, strides)

    def test_the_interface_of_the_other_device_is_absent(self):
        tensor = self.session.empty((4, 64))
        self.assertTrue(hasattr(tensor, "__array_interface__"))
        self.assertFalse(hasattr(tensor, "__cuda_array_interface__"))

    @unittest.skipUnless(torch, "no PyTorch")
    def test_torch_sees_the_bytes_bfloat16_included_and_keeps_them(self):
        tensor = self.session.empty((4, 64), "bfloat16")
        handle, there = tensor.memory.handle, tensor.torch()
        self.assertEqual((there.dtype, there.data_ptr()), (torch.bfloat16, tensor.data_ptr()))
        there.fill_(1.5)
        self.assertEqual(int(tensor.numpy()[0, 0]), 0x3FC0)
        half = there[1:]
        del tensor, there
        gc.collect()
        self.assertTrue(self.alive(handle))
        del half
        self.assertFalse(self.alive(handle))

    @unittest.skipUnless(torch, "no PyTorch")
    def test_an_interpreter_ends_well_with_tensors_in_it(self):
        program = (
            "import attnd, sys, torch\n"
            "session = attnd.Session(sys.argv[1])\n"
            "tensor = session.empty((64, 64)).torch()\n"
            "torch.kept = tensor[3:]\n"
            "capsule = session.empty(8).__dlpack__()\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, self.path], capture_output=True, text=True
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
