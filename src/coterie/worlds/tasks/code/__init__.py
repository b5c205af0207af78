"""Programming problems: a tester writes tests, a coder writes a program, the program is run."""
