"""Build a table, play it, learn, evaluate and record: everything behind `coterie train`."""
