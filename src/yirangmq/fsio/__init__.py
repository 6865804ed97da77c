"""What is done with files and the threads that wait for them, below the stores. Does not know: messages, formats."""
