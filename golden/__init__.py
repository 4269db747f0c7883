"""What "correct" is: the reference model, the shipped checkpoint and the stored cases."""
