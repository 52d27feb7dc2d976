"""What is written down twice is the same, or importing the package fails."""

import ctypes as c
import re
import unittest

from attnd import LayoutMismatch, _abi, _library
from service import ROOT


class Layout(unittest.TestCase):
    def setUp(self):
        self.table = _library._table(_library.lib)

    def test_every_struct_of_the_package_is_in_the_library_as_it_is_here(self):
        for kind in _abi.STRUCTS:
            for name, own in _abi.layout(kind).items():
                self.assertEqual(self.table[name], own, name)

    def test_every_struct_and_field_of_the_headers_is_in_the_librarys_table(self):
        found = set()
        schemas = ROOT / "schemas" / "errors.h", ROOT / "schemas" / "variant.h"
        for header in *(ROOT / "client").glob("attnd*.h"), *schemas:
            text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.S)
            for name, body in re.findall(r"^struct (\w+) \{(.*?)^\};", text, flags=re.S | re.M):
                fields = re.findall(r"(\w+)(?:\[\w+\])?\s*[,;]", body)
                found |= {name} | {f"{name}.{field}" for field in fields}
        found = {name for name in found if not name.startswith("attnd_abi_entry")}
        self.assertEqual(found, set(self.table))

    def test_a_field_at_another_place_is_named(self):
        self.table["attnd_batch.sm_scale"] = 20, 4
        with self.assertRaisesRegex(LayoutMismatch, r"attnd_batch\.sm_scale.*\(24, 4\).*\(20, 4\)"):
            _abi.check(self.table)

    def test_a_field_that_the_library_lacks_is_named(self):
        del self.table["attnd_op.lane"]
        with self.assertRaisesRegex(LayoutMismatch, r"attnd_op\.lane"):
            _abi.check(self.table)

    def test_a_struct_with_its_size_may_grow_and_another_may_not(self):
        self.table["attnd_batch"] = 0, c.sizeof(_abi.Batch) + 8
        _abi.check(self.table)
        self.table["attnd_completion"] = 0, c.sizeof(_abi.Completion) + 8
        with self.assertRaisesRegex(LayoutMismatch, "attnd_completion"):
            _abi.check(self.table)


if __name__ == "__main__":
    unittest.main()
