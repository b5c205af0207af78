"""Mathematics: a tool calculates, a reasoner answers, the answer is verified."""
