"""What is done with finished runs: match, compare, exploit, rate, tune, report."""
