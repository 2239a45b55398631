"""What small heads do on a plateau: keys and queries turn towards the unlearned modes."""
