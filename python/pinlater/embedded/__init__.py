"""The embedded server: a private Valkey of one user, shared by the processes of that user."""
