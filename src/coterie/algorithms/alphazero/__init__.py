"""AlphaZero: self-play by tree search, and a network that learns from it."""
