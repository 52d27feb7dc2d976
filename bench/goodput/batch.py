"""A step's requests as page tables, by numpy: what a serving engine computes in front of each step.
"""

import itertools

import numpy
from ways import PagedBatch


class StepBatch(PagedBatch):
    """Of [(pages of a request, its rows, its tokens in the cache, those rows included)]."""

    def __init__(self, requests, page_size):
        self.page_size = page_size
        self.rows = [rows for _, rows, _ in requests]
        self.tokens = [tokens for _, _, tokens in requests]
        self.counts = [-(-tokens // page_size) for tokens in self.tokens]
        self.pages = [pages[:n] for (pages, _, _), n in zip(requests, self.counts)]
        self.of_rows = numpy.array(self.rows, numpy.int64)
        self.of_tokens = numpy.array(self.tokens, numpy.int64)
        self.qo_indptr = indptr(self.of_rows)
        self.kv_indptr = indptr(numpy.array(self.counts, numpy.int64))
        flat = itertools.chain.from_iterable(self.pages)
        self.indices = numpy.fromiter(flat, numpy.int32, int(self.kv_indptr[-1]))
        self.last = ((self.of_tokens - 1) % page_size + 1).astype(numpy.int32)

    def part(self, first, last):
        begin, end = self.kv_indptr[first], self.kv_indptr[last]
        return (
            self.qo_indptr[first : last + 1] - self.qo_indptr[first],
            self.kv_indptr[first : last + 1] - begin,
            self.indices[begin:end],
            self.last[first:last],
        )

    def places(self):
        """int32 arrays [rows]: the position of each row, and its slot in the cache."""
        of = numpy.repeat(numpy.arange(len(self.rows)), self.of_rows)
        within = numpy.arange(len(of)) - self.qo_indptr[of]
        positions = (self.of_tokens - self.of_rows)[of] + within
        pages = self.indices[self.kv_indptr[of] + positions // self.page_size]
        slots = pages.astype(numpy.int64) * self.page_size + positions % self.page_size
        return positions.astype(numpy.int32), slots.astype(numpy.int32)


def indptr(counts):
    found = numpy.zeros(len(counts) + 1, numpy.int32)
    numpy.cumsum(counts, out=found[1:])
    return found
