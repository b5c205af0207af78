"""What a language model does beside playing: it advises, judges, reads, and watches over rules."""
