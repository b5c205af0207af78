"""Third-party environments as worlds, and our worlds as PettingZoo and Gymnasium environments."""
