"""Studies of finished runs: match, compare, exploit, rate, tune, report."""
