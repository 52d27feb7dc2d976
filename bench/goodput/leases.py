"""Pages of a pool of the service, as the scheduler takes them.

A call for each page would cost a step more than its plan. So pages are leased and given back in
lots, and those that are free meanwhile lie here. Several engines may lease from one pool.
"""

LOT = 256  # pages at most; of a small pool a part, so that engines do not keep it from each other
LOTS_OF_POOL = 64


class LeasedPages:
    """alloc() and free() over an attnd.PagePool, and tickets. @attnd: the package."""

    def __init__(self, attnd, pool):
        self.attnd, self.pool, self.left = attnd, pool, []
        self.lot = max(1, min(LOT, pool.pages // LOTS_OF_POOL))

    def alloc(self, count):
        if count > len(self.left) and not self._lease(count - len(self.left)):
            return None
        cut = len(self.left) - count
        found = self.left[cut:]
        del self.left[cut:]
        return found

    def _lease(self, wanted):
        for count in (max(wanted, self.lot), wanted):
            try:
                self.left += self.pool.alloc_pages(count).tolist()
            except self.attnd.NoSpace:
                continue
            return True
        return False

    def free(self, pages):
        self.left += pages
        if len(self.left) > 2 * self.lot:
            cut = len(self.left) - self.lot
            back, self.left = self.left[:cut], self.left[cut:]
            self.pool.free_pages(back)

    def give_back(self):
        """All that are free here."""
        back, self.left = self.left, []
        if back:
            self.pool.free_pages(back)

    def offer(self, pages):
        """A ticket for another engine of the pool. The pages are not ours any more."""
        return self.pool.offer_pages(pages)

    def claim(self, ticket):
        return self.pool.claim_pages(ticket).tolist()
