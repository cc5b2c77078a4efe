"""What tests share: the zoo of models, checks by value, builders of small graphs."""
