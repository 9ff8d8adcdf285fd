"""What the suites share: how a check runs, is compared and is reported."""
from compare import differs, flat
from worker import Died, Refused, Untold


class Suite:
    """name, index and shown tell which entry, sample and call is under way."""

    def __init__(self, worker, report, options):
        self.worker, self.report, self.options = worker, report, options
        self.name, self.index, self.shown, self.random = None, 0, "", False

    def guard(self, phase, check, *args):
        """Runs a check: what it returns, or that it fails, is reported."""
        try:
            reason = check(*args)
        except Untold as e:
            self.report.skip(self.name, phase, str(e))
            return False
        except Refused as e:
            reason = f"raises: {e}"
        except Died as e:
            reason = f"ends the process: {e}"
        except Exception as e:  # an odd sample must not end the run
            reason = f"this script fails: {type(e).__name__}: {e}"
        if reason != "not asked":
            self.report.check(self.name, phase, reason, self.shown, self.index)
        return reason is None

    def send(self, text, code=None):
        data = code.data if code else ()
        return self.worker.run(text, data)

    def shifted(self, k):
        """Whether result k holds positions."""
        return False

    def check_values(self, ours, want, exact, loose=1, what="result"):
        ours = flat(ours)
        if len(ours) < len(want):
            return f"{what}s: {len(ours)}, wanted {len(want)}"
        for k, (x, y) in enumerate(zip(ours, want)):
            how = differs(x, y, lambda: exact(k), self.shifted(k) if what == "result" else False,
                          loose, values=not self.random)
            if how:
                return how if k == 0 and what == "result" else f"{what} {k + 1}: {how}"
        return None
