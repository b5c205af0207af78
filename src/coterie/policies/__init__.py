"""What acts: networks and scripts so far; searchers, language models and people come as further files."""
