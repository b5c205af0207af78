"""Language models that write their answers and can be trained: who answers, how answers are sampled and chosen."""
