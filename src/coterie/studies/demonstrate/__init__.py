"""Record demonstrations by any policy; show them; convert them to and from Minari datasets."""
