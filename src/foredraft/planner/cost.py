from foredraft.planner.old_cost import CostCurve as Old
from foredraft.planner.company import Shapes as Passes

class CostCurve:
    def __init__(self, *, ragged=True):
        self.o = Old(ragged=ragged); self.batch = 1
    known = property(lambda s: s.o.known)
    stale = property(lambda s: s.o.stale)
    rounds = property(lambda s: s.o.rounds)
    baseline_ms = property(lambda s: s.o.single_ms)
    per_request = property(lambda s: s.o.turn(s.batch))
    def focus(self, depth, batch_size):
        self.o.focus(depth, batch_size); self.batch = max(1, batch_size)
    def costs(self, count, extra_rows=0):
        return self.o.prices(self.batch + extra_rows, count)
    def bounds(self, count, extra_rows=0):
        return self.costs(count, extra_rows)
    def passes(self, count, extra_rows=0):
        return self.o.shapes(self.batch + extra_rows, count) if self.o.in_passes else None
    def draft_cost(self, lengths):
        return self.o.beyond_plain(self.batch, lengths)
    def row_cost(self): return self.o.row_price()
    def break_even(self, m): return self.o.break_even(m)
    def learn(self, m):
        self.o.learn(m, [len(o.draft) for _, o in m.outcomes if o.draft])
    def state(self): return {"curve": self.o.curve(), "resize": self.o.resize}
    def load_state(self, s):
        self.o.seed(s["curve"], s.get("resize"))
