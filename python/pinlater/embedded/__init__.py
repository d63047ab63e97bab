"""The private Valkey server of one user."""
